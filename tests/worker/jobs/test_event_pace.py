"""When tokens become an event: the first at once, then as seldom as was said, and all jobs' together."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from llama_herd.worker.jobs.event_log import UNWATCHED_S, EventPace


def events(gather_s: float, steps_s: list[float], start_s: float = 0.0, lag_s: float = 0.0) -> list[float]:
    """When events go of which each step brings a token: at a step, or when what has come before is due."""
    pace, sent, has_some = EventPace(gather_s), list[float](), False
    pace.begin(start_s)
    for step_s in steps_s:
        if has_some and pace.due_s < step_s:
            sent.append(pace.due_s)
            pace.sent(pace.due_s, lag_s)
        has_some = step_s < pace.due_s
        if not has_some:
            sent.append(step_s)
            pace.sent(step_s, lag_s)
    return sent


def steps(start_s: float, num: int, each_s: float) -> list[float]:
    return [start_s + each_s * number for number in range(1, num + 1)]


@given(start_s=st.floats(0, 1000), gather_s=st.floats(0.001, 0.499), each_s=st.floats(0.001, 1.0))
def test_the_first_token_goes_at_once_and_none_waits_longer_than_was_said(
    start_s: float, gather_s: float, each_s: float
) -> None:
    when = steps(start_s, 50, each_s)
    sent = events(gather_s, when, start_s)
    assert sent[0] == when[0]
    for step_s in when:
        later = [one for one in sent if one >= step_s]
        assert not later or later[0] - step_s <= gather_s + 1e-9


@given(start_s=st.floats(0, 1000), gather_s=st.floats(0.02, 0.499), num=st.integers(1, 400))
def test_there_are_no_more_events_than_was_said(start_s: float, gather_s: float, num: int) -> None:
    when = steps(start_s, num, 0.01)
    assert len(events(gather_s, when, start_s)) <= 2 + (when[-1] - when[0]) / gather_s


@given(start_s=st.floats(0, 1000), seconds=st.floats(0.1, 20))
def test_an_unwatched_answer_has_an_event_each_half_second(start_s: float, seconds: float) -> None:
    """Beside its start and its end, and with the last tokens, which go at once."""
    when = steps(start_s, int(seconds / 0.01), 0.01)
    sent = events(UNWATCHED_S, when, start_s)
    assert len(sent) + 1 <= 1 + seconds / UNWATCHED_S + 1e-6
    assert all(later - earlier >= UNWATCHED_S - 0.011 for earlier, later in pairwise(sent))


def test_each_step_is_an_event_where_that_is_asked_for_however_slow_redis_is() -> None:
    when = steps(7.0, 20, 0.001)
    assert events(0.0, when, 7.0, lag_s=1.0) == when


def test_slow_steps_wait_for_nothing() -> None:
    when = steps(7.0, 20, 0.1)
    assert events(0.05, when, 7.0) == when


@pytest.mark.parametrize("gather_s", [0.05, 0.1, 0.5, 2.0])
def test_jobs_that_began_at_different_times_send_together(gather_s: float) -> None:
    starts_s = (100.0, 100.017, 100.171)
    sent = [events(gather_s, steps(start_s, 1000, 0.01), start_s)[1:] for start_s in starts_s]
    ends_s = min(one[-1] for one in sent)
    later = [{round(at_s, 6) for at_s in one if 104 < at_s <= ends_s} for one in sent]
    assert later[0]
    grid_s = min(gather_s, UNWATCHED_S)
    assert all(abs(at_s / grid_s - round(at_s / grid_s)) < 1e-3 for one in later for at_s in one)


def test_while_redis_is_slow_tokens_are_gathered_for_longer() -> None:
    when = steps(0.0, 1000, 0.01)
    assert len(events(0.05, when)) > 190
    assert len(events(0.05, when, lag_s=0.2)) < 55
