"""Tries come soon at first, then seldom, and end after about three days."""

from llama_herd.tasks.webhooks.sender import DELAYS_S, JITTER, PATIENCE_S, delay_ms


def test_each_try_is_later_than_the_one_before_and_the_last_is_after_three_days() -> None:
    assert list(DELAYS_S) == sorted(DELAYS_S)
    assert 2.5 <= PATIENCE_S / 86_400 <= 3
    for number, delay_s in enumerate(DELAYS_S, 1):
        delays_ms = [delay_ms(number) or 0 for _ in range(100)]
        assert all(1000 * delay_s <= one <= 1000 * delay_s * (1 + JITTER) for one in delays_ms)
        assert len(set(delays_ms)) > 1
    assert delay_ms(len(DELAYS_S) + 1) is None
