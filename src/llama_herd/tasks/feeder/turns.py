"""Whose batch has the next place: places are shared evenly among the tenants whose batches wait."""

from collections import Counter
from collections.abc import Iterable, Sequence

from llama_herd.tasks.ledger.stored_files import DueItem


def in_turn(waiting: Iterable[DueItem], running: Iterable[DueItem]) -> list[DueItem]:
    """The batches that wait, in the order in which they get places; of a tenant the oldest comes first."""
    num = Counter(one.tenant for one in running)
    places: list[tuple[int, DueItem]] = []
    for one in waiting:
        places.append((num[one.tenant], one))
        num[one.tenant] += 1
    return [one for _, one in sorted(places, key=lambda place: place[0])]


def who_gives_way(waiting: Iterable[DueItem], running: Sequence[DueItem]) -> DueItem | None:
    """The batch that leaves its place to another tenant's: the last one of the tenant that runs most.

    None if that one would not run more than the other even then.
    """
    num = Counter(one.tenant for one in running)
    fewest = min((num[one.tenant] for one in waiting), default=None)
    if fewest is None or max(num.values(), default=0) - fewest < 2:
        return None
    most = max(num.values())
    return next(one for one in reversed(running) if num[one.tenant] == most)
