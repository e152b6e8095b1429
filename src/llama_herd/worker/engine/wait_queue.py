"""Which sequences wait for admission, in which order. It counts admitted tokens: no clock, no tensor."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from operator import attrgetter

from llama_herd.model.prefix_cache import Digest
from llama_herd.tasks.protocol.priority import MAX_PRIORITY
from llama_herd.worker.engine.sequence import Sequence

#: All sequences that wait at a priority rise by one each time this many tokens were admitted from above.
RISE_TOKENS = 8192


@dataclass(eq=False, slots=True)
class WaitEntry:
    """Where a sequence stands in the queue; `number` counts arrivals."""

    sequence: Sequence
    number: int
    priority: int
    num_passed: int = 0  # tokens admitted from behind while this was first
    may_preempt: bool = True  # False: the places of all lower ones were not enough
    awaited: Digest | None = None  # a page of its prompt that another sequence was computing at the last look

    @property
    def num_left(self) -> int:
        """Tokens that may still be admitted from behind while this is first: together as many as it takes."""
        return self.sequence.num_reserved - self.num_passed


class PriorityLevel:
    """Sequences of one priority: the least served tenant first, and within a tenant first come, first served.

    It lasts as long as some wait there. Service is counted in reserved tokens, since the queue is about room.
    A new tenant starts level with the least served one that waits, so staying away earns nothing.
    """

    def __init__(self) -> None:
        self.num_overtaken = 0  # tokens admitted from higher levels since the first arrival
        self._lines: dict[str, list[WaitEntry]] = {}  # by tenant, none empty
        self._served: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def in_order(self) -> Iterator[WaitEntry]:
        """All entries, tenant by tenant."""
        for tenant in sorted(self._lines, key=lambda name: (self._served[name], self._lines[name][0].number)):
            yield from self._lines[tenant]

    def add(self, tenant: str, entries: list[WaitEntry]) -> None:
        if tenant not in self._lines:
            least = min((self._served[name] for name in self._lines), default=0)
            self._served = {name: num for name, num in self._served.items() if num >= least}
            self._served.setdefault(tenant, least)
        line = self._lines.setdefault(tenant, [])
        in_order = not line or line[-1].number < entries[0].number
        line.extend(entries)
        if not in_order:
            line.sort(key=attrgetter("number"))

    def remove(self, entry: WaitEntry) -> None:
        line = self._lines[entry.sequence.tenant]
        line.remove(entry)
        if not line:
            del self._lines[entry.sequence.tenant]

    def charge(self, tenant: str, num_tokens: int) -> None:
        self._served[tenant] += num_tokens

    def rise_to(self, above: "PriorityLevel") -> None:
        """Move all entries one level up."""
        for tenant, entries in self._lines.items():
            for entry in entries:
                entry.priority += 1
            above.add(tenant, entries)


class WaitQueue:
    """Sequences in the order in which they are to be admitted.

    Highest priority first, but all that wait at one rise to the next for each RISE_TOKENS that are admitted
    from above. So none starves: a sequence of priority p is overtaken from above by at most MAX_PRIORITY - p
    times RISE_TOKENS and one sequence. At its own level it comes after the older ones of its tenant. Each
    other tenant gets as much there as these, and at most two sequences more on each level.
    """

    def __init__(self) -> None:
        self._levels: defaultdict[int, PriorityLevel] = defaultdict(PriorityLevel)  # by priority, none empty
        self._entries: dict[Sequence, WaitEntry] = {}
        self._num_watched = 0  # those that cannot wait for all others
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of arrival."""
        return iter(self._entries)

    @property
    def can_wait(self) -> bool:
        """Whether all can wait for all others."""
        return not self._num_watched

    def in_order(self) -> Iterator[WaitEntry]:
        """All entries, the next to be admitted first. Ask again after each change."""
        for priority in sorted(self._levels, reverse=True):
            yield from self._levels[priority].in_order()

    def join(self, sequence: Sequence) -> None:
        """One that has lost its place comes before later ones again, and a level higher each time."""
        if sequence.arrival < 0:
            sequence.arrival = next(self._numbers)
        priority = min(MAX_PRIORITY, sequence.priority + sequence.num_preemptions)
        entry = WaitEntry(sequence, sequence.arrival, priority)
        self._entries[sequence] = entry
        self._num_watched += not sequence.can_wait
        self._levels[priority].add(sequence.tenant, [entry])

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence that was not admitted."""
        entry = self._entries.pop(sequence)
        self._num_watched -= not sequence.can_wait
        level = self._levels[entry.priority]
        level.remove(entry)
        if not level:
            del self._levels[entry.priority]

    def admit(self, entry: WaitEntry) -> None:
        """Admit one, charge its tenant what it reserves, and let those rise that it has overtaken.

        Of one that waits again that is what is still to come.
        """
        sequence = entry.sequence
        num_tokens = sequence.num_reserved - (len(sequence.ids) if sequence.num_preemptions else 0)
        self._levels[entry.priority].charge(sequence.tenant, num_tokens)
        self.leave(sequence)
        for below in sorted(self._levels, reverse=True):
            level = self._levels[below]
            if below < entry.priority:
                level.num_overtaken += num_tokens
                if level.num_overtaken >= RISE_TOKENS:
                    self._levels.pop(below).rise_to(self._levels[below + 1])
