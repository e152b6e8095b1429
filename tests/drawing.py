"""Which tests are left out: of very many combinations by `make test`, and what costs much by `make quick`."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

import pytest
from hypothesis import is_hypothesis_test

T = TypeVar("T")

#: What starts a Redis, clients and threads of its own, or the compiler; and what a law of `for_any` takes.
COSTLY_ARGUMENTS = frozenset({"redis_url", "own_redis", "kernels_folder", "num_examples"})


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Call slow, of each test that is marked as `drawn`, the combinations that its draw leaves out.

    Any two values of two parameters meet in at least one of the others; `drawn(1)` asks only that each value
    comes in one. The draw is the same each time.
    """
    tests = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("drawn"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, all_of_one in tests.items():
        random.Random(name).shuffle(all_of_one)
        mark = all_of_one[0].get_closest_marker("drawn")
        drawn = draw({test: test.callspec.params for test in all_of_one}, *(mark.args if mark else ()))
        for test in all_of_one:
            if test not in drawn:
                test.add_marker(pytest.mark.slow)


def mark_cost(items: Iterable[pytest.Item]) -> None:
    """Call a test long that needs much or makes its own examples, and again what only repeats a function."""
    seen = set()
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        function = getattr(item, "function", None)
        if COSTLY_ARGUMENTS & {*getattr(item, "fixturenames", ())} or is_hypothesis_test(function):
            item.add_marker(pytest.mark.long)
        if function in seen:
            item.add_marker(pytest.mark.again)
        seen.add(function)


def draw(combinations: Mapping[T, Mapping[str, object]], num_meeting: int = 2) -> list[T]:
    """Those in which most pairs of values meet that have met in none so far, until all pairs have.

    num_meeting: so many values, where not two.
    """
    groups = {one: _groups(values, num_meeting) for one, values in combinations.items()}
    seen: set[object] = set()
    drawn = []
    for num_new in range(max(map(len, groups.values())), 0, -1):
        for one, its_groups in groups.items():
            if len(its_groups - seen) >= num_new:
                drawn.append(one)
                seen |= its_groups
    return drawn


def _groups(values: Mapping[str, object], num: int) -> set[object]:
    """Of one value alone too, as a test may have one parameter."""
    named = [(name, repr(value)) for name, value in values.items()]
    return {*named, *itertools.combinations(named, num)}
