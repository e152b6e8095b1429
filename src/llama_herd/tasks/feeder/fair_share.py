"""Whose batch runs next: of those that run at a time, all tenants with batches get even shares."""

from collections import Counter
from collections.abc import Iterable, Sequence

from llama_herd.tasks.ledger.stored_files import DueItem


def order_fairly(waiting: Iterable[DueItem], running: Iterable[DueItem]) -> list[DueItem]:
    """The batches that wait, in the order in which they are to run; of each tenant the oldest comes first."""
    num = Counter(one.tenant for one in running)
    places: list[tuple[int, DueItem]] = []
    for one in waiting:
        places.append((num[one.tenant], one))
        num[one.tenant] += 1
    return [one for _, one in sorted(places, key=lambda place: place[0])]


def batch_to_give_way(waiting: Iterable[DueItem], running: Sequence[DueItem]) -> DueItem | None:
    """The batch that stops for another tenant's: the last one of the tenant that runs most.

    None if that one would not run more than the other even then.
    """
    num = Counter(one.tenant for one in running)
    fewest = min((num[one.tenant] for one in waiting), default=None)
    if fewest is None or max(num.values(), default=0) - fewest < 2:
        return None
    most = max(num.values())
    return next(one for one in reversed(running) if num[one.tenant] == most)
