"""The rate of tokens and the first token are those of the last seconds, and are forgotten after them."""

from llama_herd.worker.jobs.figures import ENDS_S, RATE_S, RecentFigures


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    figures = RecentFigures(clock)
    assert figures.tokens_per_s == 0
    for _ in range(40):
        figures.note_tokens(3)
        clock.now_s += 0.25
    assert figures.tokens_per_s == 12
    clock.now_s += RATE_S / 2
    assert 0 < figures.tokens_per_s < 12
    clock.now_s += RATE_S
    assert figures.tokens_per_s == 0


def test_a_worker_that_has_just_begun_is_not_measured_by_a_time_before() -> None:
    clock = Clock()
    figures = RecentFigures(clock)
    figures.note_tokens(100)
    clock.now_s += 2
    assert figures.tokens_per_s == 50


def test_the_first_token_is_the_median_of_the_last_minute() -> None:
    clock = Clock()
    figures = RecentFigures(clock)
    figures.note_end(9.0)
    clock.now_s += ENDS_S + 1
    for ttft_s in (0.1, 0.2, 5.0):
        figures.note_end(ttft_s)
    figures.note_end(None)
    assert figures.ttft_s == 0.2
    clock.now_s += ENDS_S + 1
    assert figures.ttft_s == 0
