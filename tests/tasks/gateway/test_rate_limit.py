"""The limit of requests a second by one key, which keeps nothing of keys that are as good as new."""

import pytest

from llama_herd.tasks.gateway import context
from llama_herd.tasks.gateway.context import BURST_S, RateLimit
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.security.api_keys import KeyRole

RATE = 2.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(context, "monotonic", clock)
    return clock


@pytest.fixture
def limit(clock: Clock) -> RateLimit:
    return RateLimit(GatewaySettings.read(gateway_key_rate=RATE))


def ask(limit: RateLimit, key: str, cost: float = 1.0) -> None:
    limit.charge(Caller("default", KeyRole.PRODUCER, key, key), cost, 0.0)


def test_of_keys_that_come_once_nothing_is_kept(limit: RateLimit, clock: Clock) -> None:
    for number in range(10_000):
        ask(limit, str(number))
        clock.now_s += 0.25
    assert len(limit._left) <= 1 + 1 / RATE / 0.25


def test_a_debt_is_kept_until_it_is_paid_whoever_else_asks(limit: RateLimit, clock: Clock) -> None:
    most = RATE * BURST_S
    ask(limit, "greedy", cost=2 * most)
    for number in range(int(BURST_S) - 1):
        clock.now_s += 1.0
        ask(limit, f"other-{number}")
        with pytest.raises(Problem, match="may send 2 requests a second"):
            ask(limit, "greedy")
    clock.now_s += 2.0
    ask(limit, "greedy")
