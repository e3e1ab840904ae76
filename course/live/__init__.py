"""From running ranks to a picture: events -> a queue -> bounded aggregates, drawn by one painter, at most ten frames a second."""

from course.live.live import Live, live, on
from course.live.painter import Painter, painter

__all__ = ["Live", "Painter", "live", "on", "painter"]
