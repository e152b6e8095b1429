"""A reader's position in one job's events: which events to pass on or drop, and when to read the stream.

Live events come by a channel, which keeps nothing; the stream keeps all events. A reader subscribes, reads
the stream from its position on, and continues live. It reads the stream again whenever it may have missed an
event. The loops around `Follower` are in `Client`, for a thread, and in `Reader`, for asyncio.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from math import inf
from time import monotonic

from pydantic import ValidationError
from redis.exceptions import NoPermissionError, RedisError

from llama_herd.errors import JobNotFound, RecordUnreadable, StreamRewritten
from llama_herd.tasks.client.arguments import checked_after, checked_seconds
from llama_herd.tasks.client.job_status import read_job_status
from llama_herd.tasks.client.submission import checked_job_id
from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import read_record
from llama_herd.tasks.protocol.events import End, Event, Started, Token, Vectors, parse_event

#: How long a client waits for an event before it reads the stream, since a channel may lose events.
SILENCE_S = 2.0

#: Most events of a client's first read. On a fast line the next reads are longer, on a slow one shorter: a
#: read as long as the line carries in a few seconds would run into the timeout of a call.
SHORTEST_PAGE, FIRST_PAGE, LONGEST_PAGE = 16, 64, 4096
FAST_S, SLOW_S = 0.25, 2.0


def time_limit_s(timeout_s: float | None, timeout: float | None) -> float | None:
    """The time limit, given as `timeout_s` or, as in Celery, `timeout`.

    Raises TypeError for both, and BadInput.
    """
    if timeout_s is not None and timeout is not None:
        raise TypeError("give timeout_s or timeout, which mean the same, not both")
    name, limit_s = ("timeout", timeout) if timeout_s is None else ("timeout_s", timeout_s)
    return checked_seconds(name, limit_s)


class Continuity:
    """What the events of one job have in common with those before them: an attempt, and positions.

    A promoted replica, or a Redis after a power loss, may lack events that were read. Where their worker does
    not write them again, others get their numbers.
    """

    def __init__(self, *, is_whole: bool, cursor: str | None = None) -> None:
        """is_whole: the first event will be the job's first. cursor: the first event must be this one."""
        self._is_whole = is_whole
        self._cursor = cursor
        self._epoch: int | None = None  # of the attempt whose tokens or vectors come; None: unknown
        self._nums = Counter[int]()  # of tokens, by output
        self._num_vectors = 0
        self._text_hash = sha256()

    def goes_on(self, event: Event) -> bool:
        """Whether an event can follow those that were noted."""
        if self._cursor is not None:
            return event.cursor == self._cursor
        match event:
            case Token():
                choice = event.choice or 0
                is_known = self._is_whole or choice in self._nums
                # An attempt that has not started may still tell text that was withheld of earlier tokens.
                is_announced = not event.ids or self._epoch in (None, event.epoch)
                return is_announced and (not is_known or event.i == self._nums[choice])
            case Vectors():
                return self._epoch in (None, event.epoch)
            case End(error=None) if self._is_whole:
                is_all = event.n == self._nums.total() + self._num_vectors
                return is_all and event.text_sha256 in (None, self._text_hash.hexdigest())
        return True

    def note(self, event: Event) -> None:
        """Note an event that is passed on, or was before."""
        self._cursor = None
        match event:
            case Started():
                self._epoch = event.epoch
            case Token():
                self._nums[event.choice or 0] = event.i + len(event.ids)
                self._text_hash.update(event.text.encode())
                self._epoch = event.epoch if event.ids else self._epoch
            case Vectors():
                self._num_vectors += len(event.texts)
                self._epoch = event.epoch


class Follower:
    """Follows one job from the event after number `after` to its end.

    after: a number, or the cursor of an event, which must still be there as it was. timeout_s: limit for the
    whole time; None: no limit. waits: whether to wait for a job that does not exist yet.
    """

    def __init__(
        self, job_id: str, *, after: int | str = 0, timeout_s: float | None = None, waits: bool = True
    ) -> None:
        """Make a follower. Raises InvalidJob if `job_id` cannot be an id, BadInput for `after`."""
        self.job_id = checked_job_id(job_id)
        self._after, cursor = checked_after(after)
        #: Number of the last event that was read. The one that a cursor names is read once more.
        self.last = self._after - (cursor is not None)
        self.has_ended = False
        self._continuity = Continuity(is_whole=not self._after, cursor=cursor)
        #: Whether the record has said that the job is over, and the stream was not read since then.
        self._is_final = False
        #: Whether the stream must be read before live events can be passed on.
        self.is_behind = True
        #: From when the job is to end, as the record has told. Until then: perhaps already.
        self.ends_at_s = -inf
        #: Most events of the next read.
        self.page = FIRST_PAGE
        self._waits = waits
        self._timeout_s = timeout_s
        self._until_s = None if timeout_s is None else monotonic() + timeout_s

    def anew(self) -> "Follower":
        """A follower of the same job from its beginning, up to the same time."""
        return Follower(self.job_id, timeout_s=self.left_s, waits=self._waits)

    @property
    def passed_on(self) -> int:
        """Number of the last event that the reader has."""
        return max(self.last, self._after)

    @property
    def left_s(self) -> float | None:
        """Time to the limit; None without one."""
        return None if self._until_s is None else max(0.0, self._until_s - monotonic())

    def wait_s(self) -> float:
        """The time to wait for a live event, in seconds."""
        left_s = self.left_s
        return SILENCE_S if left_s is None else min(SILENCE_S, left_s)

    def heard(self, messages: Sequence[bytes] | None) -> list[Event]:
        """The events to pass on after these messages of the channel, if any; None: some may be missing.

        Every producer of the tenant may publish on the channel: messages that are not events of this job are
        ignored.
        """
        if messages is None:
            self.is_behind = True
            return []
        events: list[Event] = []
        for message in messages:
            with suppress(ValidationError):
                events.append(parse_event(message))
        own = [event for event in events if event.job == self.job_id]
        fresh = self._take_fresh(own)
        if not self.has_ended and any(isinstance(event, End) for event in own):
            self.is_behind = True  # it is over, perhaps before what was read
        return fresh

    def stored(self, events: Iterable[Event]) -> list[Event]:
        """The events to pass on after a read of the stream.

        Raises RecordUnreadable if it is damaged, and StreamRewritten.
        """
        found = list(events)
        if any(event.job != self.job_id for event in found):
            raise RecordUnreadable(f"the stream of job {self.job_id} contains an event of another job")
        fresh = self._take_fresh(found)
        if self.is_behind:
            if any(event.seq == self.last + 1 for event in found):
                raise StreamRewritten.behind(self.job_id, self.passed_on)
            raise RecordUnreadable(f"the stream of job {self.job_id} lacks the event after {self.last}")
        return fresh

    def note_read(self, seconds: float) -> None:
        """Make the next page longer or shorter, after a full one that took so long."""
        if seconds < FAST_S:
            self.page = min(2 * self.page, LONGEST_PAGE)
        elif seconds > SLOW_S:
            self.page = max(self.page // 2, SHORTEST_PAGE)

    def _take_fresh(self, events: Iterable[Event]) -> list[Event]:
        """The events that directly follow those passed on before, in order."""
        fresh: list[Event] = []
        self.is_behind = False
        for event in events:
            if event.seq <= self.last or self.has_ended:
                continue
            if event.seq > self.last + 1 or not self._continuity.goes_on(event):
                self.is_behind = True
                break
            self._continuity.note(event)
            self.last = event.seq
            self.has_ended = isinstance(event, End)
            if event.seq > self._after:
                fresh.append(event)
        return fresh

    def note_end_time(self, record: JobRecord | None, now_ms: int) -> None:
        """Note when the job is to end, by its deadline or since somebody has asked for it."""
        left_ms = inf if record is None or record.deadline_ms is None else record.deadline_ms - now_ms
        self.ends_at_s = -inf if record is not None and record.cancel else monotonic() + left_ms / 1000

    def check_record(self, record: JobRecord | None) -> None:
        """Decide by the record, after a read of nothing new, whether events can still come.

        Raises JobNotFound if the job has been forgotten, or does not exist and is not waited for, or does not
        exist at the time limit. Raises TimeoutError if the job goes on at the time limit. Raises
        RecordUnreadable if the job is over, but its stream has no end, and StreamRewritten.
        """
        is_over = self._until_s is not None and monotonic() >= self._until_s
        if record is None and (self.passed_on or is_over or not self._waits):
            raise JobNotFound.for_id(self.job_id)
        if record is None or not record.is_final:
            self.check_time()
        elif self.last == self._after and self.last >= max(record.seq, 1):
            self.has_ended = True  # the caller asked for events after the end: there are none
        elif self._is_final:
            if record.seq <= self.passed_on:  # it ended before what was passed on
                raise StreamRewritten.behind(self.job_id, self.passed_on)
            raise RecordUnreadable(f"job {self.job_id} is over, but its stream has no end")
        else:
            # The job may have ended after the stream was read: read it once more.
            self._is_final = True
            self.is_behind = True

    def check_stream(self, kept: list[Event]) -> None:
        """Decide as `check_record`, for a reader without access to records, by the last events of the stream.

        Without any of a stream that was read the job is forgotten.
        """
        if not kept and self.passed_on:
            raise JobNotFound.for_id(self.job_id)
        if not (kept and isinstance(kept[-1], End) and kept[-1].seq <= self.last):
            self.check_time()
        elif self.last != self._after:  # it ended before what was passed on
            raise StreamRewritten.behind(self.job_id, self.passed_on)
        else:
            self.has_ended = True

    def check_time(self) -> None:
        """Raise TimeoutError once the time limit is reached."""
        if self._until_s is not None and monotonic() >= self._until_s:
            raise TimeoutError(f"job {self.job_id} has not ended within {self._timeout_s} s")


async def read_new(ledger: Ledger, follower: Follower, limit: int | None = None) -> list[Event]:
    """Read new events from the stream. If there are none, check whether any can still come.

    limit: read no more than so many, by itself the follower's page; there may be more if there are as many.
    """
    job_id, most, asked_s = follower.job_id, limit or follower.page, monotonic()
    found = await ledger.read(job_id, follower.last, most)
    events = follower.stored(found)
    if len(found) == most:
        follower.is_behind = not follower.has_ended
        follower.note_read(monotonic() - asked_s)
    elif not events:
        try:
            record, now_ms = await read_record(ledger, job_id)
            follower.note_end_time(record, now_ms)
            follower.check_record(record)
        except NoPermissionError:  # a user in the role of a subscriber
            follower.ends_at_s = inf
            tail = await ledger.read(job_id, max(0, follower.last - 1))
            follower.check_stream(tail or await ledger.read(job_id))
        except TimeoutError as error:
            raise TimeoutError(f"{error}{(await _queue_note(ledger, job_id))}") from None
    return events


async def _queue_note(ledger: Ledger, job_id: str) -> str:
    """Say what is wrong with a job's queue, if anything is and this user may know it."""
    try:
        note = (await read_job_status(ledger, job_id)).note
    except (RedisError, JobNotFound):
        return ""
    return f": {note}" if note else ""
