"""Pictures of runs: live in the browser, as PNGs in saved notebooks, and as tables that can be read aloud."""

from course.views.curves import CurveView
from course.views.experts import ExpertsView
from course.views.labels import number
from course.views.rank_states import RankStates
from course.views.schedule_view import ScheduleView
from course.views.timeline import TimelineView

__all__ = ["CurveView", "ExpertsView", "RankStates", "ScheduleView", "TimelineView", "number"]
