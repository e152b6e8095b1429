"""One reader of a job: how far it is, what it hears, and where its job stands."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic

from llama_herd.tasks.client.follow import Follower
from llama_herd.tasks.client.inbox import Inbox
from llama_herd.tasks.client.rounds import Heard, rounds_async
from llama_herd.tasks.events import Event
from llama_herd.tasks.ledger.answers import Place


class Reader:
    """Goes on when something is heard, or when it is roused by those who look after it (`Lookout`).

    place: where its job stood at the last look, if it asks for that.
    """

    def __init__(
        self, follower: Follower, inbox: Inbox, silence_s: float, *, asks_place: bool, tick_s: float
    ) -> None:
        """Make a reader. silence_s: until it counts as silent. tick_s: about the time until it is roused."""
        self.follower = follower
        self.job_id = follower.job_id
        self.inbox = inbox
        self.place: Place | None = None
        #: Whether its place has been looked up.
        self.is_placed = False
        self._asks_place = asks_place
        self._silence_s = silence_s
        self._tick_s = tick_s
        #: Number of the last event when others had seen a later one.
        self._late_since: int | None = None
        self._was_there = True
        self._go_on()

    @property
    def is_waiting(self) -> bool:
        """Whether to look up its place: its job has not begun."""
        return self._asks_place and not self.follower.last

    def rounds(self, read: Callable[[], Awaitable[list[Event]]]) -> AsyncGenerator[list[Event]]:
        """The events as they come, up to the end; an empty list each time that there is none."""
        return rounds_async(self.follower, self._listen, read)

    def put_off(self) -> None:
        """Note that the reader has been looked after: it counts as silent again after a whole silence."""
        self.due_s = monotonic() + self._silence_s

    def is_late(self) -> bool:
        """Whether it lacks an event that it lacked when this was last asked: it did not just come."""
        was_late, self._late_since = self._late_since == self.follower.last, self.follower.last
        if not was_late:
            self.due_s = monotonic()
        return was_late

    def has_lost_its_job(self, *, is_there: bool) -> bool:
        """Whether its job neither waits nor runs, and did so at the last look, or is looked up first."""
        was_there, self._was_there = self._was_there, is_there
        return was_there and not is_there

    def stand_at(self, place: Place | None) -> None:
        """Set the place of the reader's job; None: it does not wait."""
        has_moved, self.place, self.is_placed = place != self.place, place, True
        if has_moved:
            self.inbox.rouse()

    async def _listen(self, wait_s: float) -> Heard:
        heard = await self.inbox.take(wait_s)
        self._go_on()
        return heard

    def _go_on(self) -> None:
        now_s = monotonic()
        self.due_s, self.tick_at_s = now_s + self._silence_s, now_s + self._tick_s
