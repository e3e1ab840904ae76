"""The clock of a paced rank: actions last as long as those of the modelled device, and start when it would have started them.

Eight ranks on two cores wake up late, by a millisecond or so each time, and each delay would be handed on to the next rank. So a
message carries the modelled moment of its arrival (its maker done, and the link's time on top), and a rank that comes late to an
action leaves that much less waiting behind it: delays do not add up. What the computer cannot do in time still shows: work that
takes longer than the model says counts with its own length, and a rank may come late by GRACE at most before the model gives way.
"""

from __future__ import annotations

from minipar import pacing
from minipar.trace import now

GRACE = 0.02  # seconds


class Clock:
    """Moments are those of ``trace.now``, which all processes of a host share."""

    def __init__(self) -> None:
        self.free = 0.0  # when the modelled device is done with all that it was given

    def start(self, arrived: float = 0.0) -> float:
        """When an action starts whose last input arrived at ``arrived``: never long before now."""
        return max(self.free, arrived, now() - GRACE)

    def finish(self, start: float, seconds: float, worked: float) -> float:
        """Wait until an action of ``seconds`` is over, or as long as the real work took if that was longer."""
        self.free = start + max(seconds, worked)
        pacing.wait_until(self.free)
        return self.free
