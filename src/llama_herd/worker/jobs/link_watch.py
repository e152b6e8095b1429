"""LinkWatch: whether anybody takes the links, errbacks and bodies of chords that this worker sends."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import NamedTuple

import structlog

from llama_herd.tasks.protocol.worker_status import LINKS_FIX
from llama_herd.worker.broker.tenant_channel import sent_links
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

log = structlog.get_logger(__name__)

#: How often the lists are looked at.
LOOK_S = 5.0
#: A list from which no message was taken for this long counts as unread.
UNREAD_S = 30.0


class WatchedList(NamedTuple):
    """A list with messages: how many, the next to be taken, since when that is it, whether it was told."""

    num_messages: int
    next: int  # its hash
    since_s: float
    is_told: bool = False


class UnreadList(NamedTuple):
    """A list from which nobody takes messages."""

    name: str
    num_messages: int
    seconds: float


class LinkWatch:
    """Looks at the lists into which links of each tenant went. One thread looks, any may ask.

    A link goes into a list whether its name is right or not, and a wrong one keeps it for ever.
    """

    def __init__(self, tenancies: Tenancies, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: seconds, as of time.monotonic."""
        self._tenancies = tenancies
        self._clock = clock
        self._looked_s = -LOOK_S
        self._lists: dict[Tenancy, dict[str, WatchedList]] = {}

    def look(self) -> None:
        """Look at all lists, if it is time, and log what is unread. Raises RedisError."""
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        for tenancy in self._tenancies:
            before, found = self._lists.get(tenancy, {}), dict[str, WatchedList]()
            for name, length, message in self._filled_lists(tenancy.ledger.tenant):
                was = before.get(name, WatchedList(0, message, now_s))
                since_s = was.since_s if was.next == message else now_s
                found[name] = WatchedList(length, message, since_s, was.is_told)
                if now_s - since_s >= UNREAD_S and not was.is_told:
                    _tell(tenancy.ledger.tenant, UnreadList(name, length, now_s - since_s))
                    found[name] = found[name]._replace(is_told=True)
            self._lists[tenancy] = found

    def unread(self, tenancy: Tenancy) -> list[UnreadList]:
        """Those from which nobody takes a tenant's links, the longest unread first."""
        now_s, lists = self._clock(), self._lists.get(tenancy, {})
        all_of_them = (UnreadList(name, one.num_messages, now_s - one.since_s) for name, one in lists.items())
        return sorted((one for one in all_of_them if one.seconds >= UNREAD_S), key=lambda one: -one.seconds)

    def _filled_lists(self, tenant: str) -> Iterator[tuple[str, int, int]]:
        """Name, length and next message of each list with messages that this user of Redis may look at."""
        names = sorted(sent_links(tenant) | sent_links(None))
        pipe = self._tenancies.redis.pipeline(transaction=False)
        for name in names:
            pipe.llen(name)
            pipe.lrange(name, -1, -1)
        answers = pipe.execute(raise_on_error=False)
        for name, length, last in zip(names, answers[::2], answers[1::2], strict=True):
            if isinstance(length, int) and isinstance(last, list) and last:
                yield name, length, hash(last[0])


def _tell(tenant: str, unread: UnreadList) -> None:
    log.warning(
        "nobody takes links from a list",
        list=unread.name,
        tenant=tenant,
        num_messages=unread.num_messages,
        seconds=round(unread.seconds),
        fix=LINKS_FIX,
    )
