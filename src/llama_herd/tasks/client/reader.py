"""One reader of a job's events: its position, its live messages, and the place of its job in the queue."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic

from llama_herd.tasks.client.follow_loop import Heard, follow_async
from llama_herd.tasks.client.follower import Follower
from llama_herd.tasks.client.inbox import Inbox
from llama_herd.tasks.ledger.answers import Place
from llama_herd.tasks.protocol.events import Event


class Reader:
    """Goes on when a live message comes, or when the `ReaderMonitor` wakes it.

    place: the job's place in the queue when it was last looked up, if the reader asks for it.
    """

    def __init__(
        self, follower: Follower, inbox: Inbox, silence_s: float, *, asks_place: bool, tick_s: float
    ) -> None:
        """silence_s: without an event for so long it counts as silent. tick_s: it is woken about so often."""
        self.follower = follower
        self.job_id = follower.job_id
        self.inbox = inbox
        self.place: Place | None = None
        #: Whether the place was looked up at least once.
        self.is_place_known = False
        self._asks_place = asks_place
        self._silence_s = silence_s
        self._tick_s = tick_s
        #: Its last event when the monitor saw a later one in the stream.
        self._lagged_at: int | None = None
        self._was_there = True
        self._restart_timers()

    @property
    def is_waiting(self) -> bool:
        """Whether the reader asks for its job's place, and the job has not begun."""
        return self._asks_place and not self.follower.last

    def events(self, read: Callable[[], Awaitable[list[Event]]]) -> AsyncGenerator[list[Event]]:
        """The events as they come, up to the end; an empty list each time that there is none."""
        return follow_async(self.follower, self._listen, read)

    def restart_silence(self) -> None:
        """Note that the reader was checked: it counts as silent again only after another `silence_s`."""
        self.due_s = monotonic() + self._silence_s

    def note_lag(self) -> bool:
        """Note that the stream has a later event. Returns whether it was so before: the event is not new."""
        has_lagged, self._lagged_at = self._lagged_at == self.follower.last, self.follower.last
        if not has_lagged:
            self.due_s = monotonic()
        return has_lagged

    def note_presence(self, *, is_there: bool) -> bool:
        """Note whether the job waits or runs. Returns whether it does not any more."""
        was_there, self._was_there = self._was_there, is_there
        return was_there and not is_there

    def set_place(self, place: Place | None) -> None:
        """Set the job's place, and wake the reader if it has changed. None: the job does not wait."""
        has_moved, self.place, self.is_place_known = place != self.place, place, True
        if has_moved:
            self.inbox.wake_up()

    async def _listen(self, wait_s: float) -> Heard:
        heard = await self.inbox.take(wait_s)
        self._restart_timers()
        return heard

    def _restart_timers(self) -> None:
        now_s = monotonic()
        self.due_s, self.tick_at_s = now_s + self._silence_s, now_s + self._tick_s
