"""A call is repeated until Redis takes it, and no error but a passing one is waited for."""

import pytest
from hypothesis import given, strategies as st
from redis.exceptions import ConnectionError, OutOfMemoryError, ResponseError
from structlog.testing import capture_logs

from llama_herd.worker.insisting import MAX_PAUSE_S, MIN_PAUSE_S, Stopped, insist

PASSING = st.sampled_from([ConnectionError, TimeoutError, OutOfMemoryError])


class Flaky:
    """A call that fails so many times, and what was asked of its caller meanwhile."""

    def __init__(self, failures: list[type[Exception]]) -> None:
        self.failures = list(failures)
        self.num_calls = 0
        self.pauses: list[float] = []

    def act(self) -> str:
        self.num_calls += 1
        if self.failures:
            raise self.failures.pop(0)("away")
        return "taken"

    def pause(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        return False


@given(st.lists(PASSING, max_size=12))
def test_it_is_repeated_until_it_is_taken_with_growing_pauses(failures: list[type[Exception]]) -> None:
    flaky = Flaky(failures)
    assert insist(flaky.act, "a thing", pause=flaky.pause) == "taken"
    assert flaky.num_calls == len(failures) + 1
    assert len(flaky.pauses) == len(failures)
    assert flaky.pauses == sorted(flaky.pauses)
    assert all(MIN_PAUSE_S <= pause_s <= MAX_PAUSE_S for pause_s in flaky.pauses)


@given(st.lists(PASSING, max_size=5))
def test_what_does_not_pass_is_raised_at_once(failures: list[type[Exception]]) -> None:
    flaky = Flaky([*failures, ResponseError])
    with pytest.raises(ResponseError):
        insist(flaky.act, "a thing", pause=flaky.pause)
    assert flaky.num_calls == len(failures) + 1


def test_who_stops_hears_that_it_was_not_taken() -> None:
    flaky = Flaky([ConnectionError] * 3)
    with pytest.raises(Stopped):
        insist(flaky.act, "a thing", pause=lambda _: flaky.num_calls == 2)
    assert flaky.num_calls == 2


def test_one_line_tells_of_all_failures() -> None:
    flaky = Flaky([ConnectionError] * 3)
    with capture_logs() as lines:
        insist(flaky.act, "a thing", pause=flaky.pause)
    assert [line["event"] for line in lines] == ["Redis did not take a thing, retrying"]
