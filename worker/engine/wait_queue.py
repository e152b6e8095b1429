"""Who waits to be admitted, and in which order. Its only clock is the work let in: no time, no tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from operator import attrgetter

from llama_herd.model.prefix_cache import Digest
from llama_herd.tasks.priority import MAX_PRIORITY, MIN_PRIORITY
from llama_herd.worker.engine.sequence import Sequence

#: All who wait at a priority rise by one for so many tokens that were admitted from higher ones.
RISE_TOKENS = 8192


@dataclass(eq=False, slots=True)
class Place:
    """Where a sequence stands in line; `number` counts arrivals."""

    sequence: Sequence
    number: int
    priority: int
    num_passed: int = 0  # tokens let in from behind while this was first
    awaited: Digest | None = None  # page of its prompt that another was computing when last looked at

    @property
    def tenant(self) -> str:
        return self.sequence.salt


class Level:
    """Those of one priority: first come, first served within a tenant, and least served tenant first.

    Served is counted in tokens reserved, since the line is about room. A tenant that comes starts even with
    the least served that waits, so nobody saves up by staying away.
    """

    def __init__(self) -> None:
        self.num_overtaken = 0  # tokens admitted from higher levels since somebody came or all rose
        self._lines: dict[str, list[Place]] = {}  # by tenant, none empty
        self._served: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def in_order(self) -> Iterator[Place]:
        """All places, tenant by tenant."""
        for tenant in sorted(self._lines, key=lambda name: (self._served[name], self._lines[name][0].number)):
            yield from self._lines[tenant]

    def add(self, tenant: str, places: list[Place]) -> None:
        if tenant not in self._lines:
            least = min((self._served[name] for name in self._lines), default=0)
            self._served = {name: num for name, num in self._served.items() if num >= least}
            self._served.setdefault(tenant, least)
        line = self._lines.setdefault(tenant, [])
        in_order = not line or line[-1].number < places[0].number
        line.extend(places)
        if not in_order:
            line.sort(key=attrgetter("number"))

    def remove(self, place: Place) -> None:
        line = self._lines[place.tenant]
        line.remove(place)
        if not line:
            del self._lines[place.tenant]
        if not self._lines:
            self._served.clear()
            self.num_overtaken = 0

    def charge(self, tenant: str, num_tokens: int) -> None:
        self._served[tenant] += num_tokens

    def rise_to(self, above: "Level") -> None:
        """Move everybody one level up."""
        for tenant, places in self._lines.items():
            for place in places:
                place.priority += 1
            above.add(tenant, places)
        self._lines, self._served, self.num_overtaken = {}, {}, 0


class WaitingLine:
    """Sequences in the order in which they are to be admitted.

    Highest priority first; but all who wait at one rise to the next for each RISE_TOKENS that are admitted
    from above. So nobody starves: who comes with priority p is overtaken from above by at most MAX_PRIORITY
    - p times RISE_TOKENS and one sequence. At its own level it comes after the older ones of its tenant; each
    other tenant gets as much as these there, and at most two sequences more on each level.
    """

    def __init__(self) -> None:
        self._levels = [Level() for _ in range(MIN_PRIORITY, MAX_PRIORITY + 1)]
        self._places: dict[Sequence, Place] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of arrival."""
        return iter(self._places)

    def in_order(self) -> Iterator[Place]:
        """All places, the next one to be admitted first. Ask anew after each change."""
        for level in reversed(self._levels):
            yield from level.in_order()

    def join(self, sequence: Sequence) -> None:
        place = Place(sequence, next(self._numbers), sequence.priority)
        self._places[sequence] = place
        self._level(place).add(place.tenant, [place])

    def leave(self, sequence: Sequence) -> None:
        """Go without having been admitted."""
        place = self._places.pop(sequence)
        self._level(place).remove(place)

    def admit(self, place: Place) -> None:
        """Let one in, at the cost of what it reserves; who is overtaken may rise."""
        num_tokens = place.sequence.num_reserved
        self._level(place).charge(place.tenant, num_tokens)
        self.leave(place.sequence)
        index = place.priority - MIN_PRIORITY
        for below in reversed(range(index)):
            self._note_overtaken(self._levels[below], self._levels[below + 1], num_tokens)

    def _note_overtaken(self, level: Level, above: Level, num_tokens: int) -> None:
        if level:
            level.num_overtaken += num_tokens
            if level.num_overtaken >= RISE_TOKENS:
                level.rise_to(above)

    def _level(self, place: Place) -> Level:
        return self._levels[place.priority - MIN_PRIORITY]
