"""Pictures of runs: live in the browser, as PNGs in saved notebooks, and as tables that can be read aloud."""

from course.views.timeline import TimelineView

__all__ = ["TimelineView"]
