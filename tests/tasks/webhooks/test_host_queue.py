"""How many tries one host gets at a time, and what becomes of the others."""

import asyncio
from time import monotonic

import pytest

from llama_herd.tasks.ledger.outbox import WebhookEntry
from llama_herd.tasks.ledger.webhook_configs import WebhookConfig
from llama_herd.tasks.webhooks import sender
from llama_herd.tasks.webhooks.sender import (
    DEPTH,
    LONGEST_REST_S,
    REST_S,
    WIDTH,
    HostQueue,
    PendingWebhook,
)
from tests.chaos.harness.patience import PATIENCE_S

CONFIG = WebhookConfig("default", "https://example.com/", "whsec_x", (), True, 1)


class Host:
    """Tries at it end when `answer` says so."""

    def __init__(self) -> None:
        self.lane = HostQueue(self._deliver)
        self.open: list[tuple[PendingWebhook, asyncio.Future[bool]]] = []

    async def _deliver(self, parcel: PendingWebhook) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.open.append((parcel, answer))
        return await answer

    def take(self, *, until_s: float = float("inf")) -> float | None:
        return self.lane.take(
            PendingWebhook(CONFIG, WebhookEntry("m", "job.completed", "a", "done", 1), until_s)
        )

    async def answer(self, num: int, has_answered: bool) -> None:
        """End the first tries, and let others begin."""
        ended, self.open = self.open[:num], self.open[num:]
        for _, answer in ended:
            answer.set_result(has_answered)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def test_some_are_tried_at_a_time_some_wait_and_the_others_are_put_off_further_and_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(sender, "monotonic", lambda: now_s)

    async def fill() -> None:
        nonlocal now_s
        host = Host()
        assert [host.take() for _ in range(WIDTH + DEPTH)] == [None] * (WIDTH + DEPTH)
        await host.settle()
        assert len(host.open) == WIDTH
        now_s += 0.02  # for which the first ones have been under way
        waits_s = [host.take() or 0.0 for _ in range(1000)]
        assert waits_s == sorted(waits_s)
        assert 0 < waits_s[0] < waits_s[-1] <= LONGEST_REST_S
        await host.answer(WIDTH, True)
        assert len(host.open) == WIDTH
        assert host.take() is None
        assert len(await host.lane.close()) == DEPTH + 1

    asyncio.run(fill())


@pytest.mark.parametrize(("takes_s", "num_taken"), [(0.02, DEPTH), (8.0, 21)])
def test_as_many_wait_as_the_host_takes_soon(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, num_taken: int
) -> None:
    """On busy cores a try takes 20 ms. A burst that finds no room would come back much later than need be."""
    now_s = 1000.0
    monkeypatch.setattr(sender, "monotonic", lambda: now_s)

    async def fill() -> None:
        nonlocal now_s
        host = Host()
        for _ in range(100):  # until it is known how long they take
            host.take()
            await host.settle()
            now_s += takes_s
            await host.answer(1, True)
        for _ in range(WIDTH):
            assert host.take() is None
        assert [host.take() is None for _ in range(2 * DEPTH)].count(True) == num_taken
        await host.lane.close()

    asyncio.run(fill())


def test_a_host_that_is_silent_gets_one_at_a_time_until_it_answers() -> None:
    async def fail() -> None:
        host = Host()
        for _ in range(WIDTH + 3):
            host.take()
        await host.settle()
        await host.answer(WIDTH, False)
        assert len(host.open) == 1
        wait_s = host.take()
        assert wait_s is not None
        assert REST_S <= wait_s <= 2 * REST_S  # they failed together, so it is one failure
        await host.answer(1, False)
        assert 2 * REST_S <= (host.take() or 0.0) <= 4 * REST_S
        await host.answer(1, True)
        for _ in range(WIDTH):
            assert host.take() is None
        await host.settle()
        assert len(host.open) == WIDTH
        await host.lane.close()

    asyncio.run(asyncio.wait_for(fail(), PATIENCE_S))


def test_what_is_due_again_elsewhere_is_not_begun() -> None:
    async def late() -> None:
        host = Host()
        host.take(until_s=monotonic())
        await host.settle()
        assert not host.open
        assert await host.lane.close() == []

    asyncio.run(late())
