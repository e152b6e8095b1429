"""Laws of any values: `make test` tries some examples, others each time, and the slow tests many."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

EXAMPLES = [10, pytest.param(100, marks=pytest.mark.slow)]


def seeds(num_quick: int, num_all: int) -> list[Any]:
    """For a test of random cases: the first of them, and all with the slow tests."""
    return [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= num_quick)) for seed in range(num_all)]


def for_any(*values: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """In place of hypothesis's `given`."""

    def decorate(law: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("num_examples", EXAMPLES)
        def test(num_examples: int) -> None:
            settings(max_examples=num_examples)(given(*values)(law))()

        test.__name__, test.__doc__ = law.__name__, law.__doc__
        return test

    return decorate
