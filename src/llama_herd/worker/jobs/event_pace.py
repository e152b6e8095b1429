"""EventPace: when the events of a job may go."""

from dataclasses import dataclass
from math import inf

#: A job that lets its tokens be gathered for so long is taken to have nobody who watches: its first token is
#: gathered like the others.
UNWATCHED_S = 0.5


@dataclass(slots=True)
class EventPace:
    """The pace of one job's events: a step's tokens go at once, unless an event has gone shortly before.

    The times at which events may go are the same for all jobs of a worker, so that those of many jobs go in
    one call.
    """

    #: How long tokens may be gathered for one event. 0: each step's go at once.
    gather_s: float = 0.0
    #: When the next event may go, on the clock of time.monotonic.
    due_s: float = -inf

    def begin(self, now_s: float) -> None:
        """An attempt starts: somebody who watches gets its first token at once."""
        if self.gather_s >= UNWATCHED_S:
            self.due_s = _tick_after(now_s + self.gather_s, UNWATCHED_S)

    def sent(self, now_s: float, lag_s: float = 0.0) -> None:
        """An event has gone. `lag_s`: gather for so long at least, unless each step is asked for."""
        if self.gather_s:
            gather_s = max(self.gather_s, lag_s)
            tick_s = min(gather_s, UNWATCHED_S)
            self.due_s = _tick_after(now_s + gather_s - tick_s, tick_s)


def _tick_after(time_s: float, tick_s: float) -> float:
    """The next tick. One that is all but now is the one that has just been."""
    return ((time_s + 0.01 * tick_s) // tick_s + 1) * tick_s
