"""The messages for one host: some are tried at a time, others wait. So a slow host holds up no other."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from llama_herd.tasks.ledger.outbox import WebhookEntry
from llama_herd.tasks.ledger.webhook_configs import WebhookConfig
from llama_herd.tasks.task_cancel import cancel_tasks

#: Most tries at a time. A host that does not answer gets one.
WIDTH = 16
#: Most messages that wait here, and for how long at the pace of the host. More stay in the outbox. When they
#: come back is a guess: while the cores are busy it is too late by far, so a burst must find room here.
DEPTH, AHEAD_S = 4096, 10.0
#: How long messages for a host that does not answer are left alone: twice as long after each failure, up
#: to the second.
REST_S, LONGEST_REST_S = 5.0, 600.0
SHORTEST_WAIT_S = 0.1
#: More make no difference.
MAX_FAILURES = 16


@dataclass(frozen=True, slots=True)
class PendingWebhook:
    """A message to be sent. until_s: it is not begun later, since by then it is due in its outbox again."""

    config: WebhookConfig
    entry: WebhookEntry
    until_s: float


class HostQueue:
    """The queue of one host. deliver: makes a try, and returns whether the host has answered at all."""

    def __init__(self, deliver: Callable[[PendingWebhook], Awaitable[bool]]) -> None:
        self._deliver = deliver
        self._waiting: deque[PendingWebhook] = deque()
        self._running: dict[asyncio.Task[None], PendingWebhook] = {}
        self._num_failures = 0
        #: How long a try takes, as a moving average.
        self._try_s = 0.0
        self._room_at_s = 0.0
        #: When the last try has ended, or the first has begun.
        self._last_end_s = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the host has not answered lately."""
        return self._num_failures > 0

    async def close(self) -> list[PendingWebhook]:
        """End all tries, and return what was not delivered."""
        left = [*self._running.values(), *self._waiting]
        self._waiting.clear()
        await cancel_tasks(*self._running)
        return left

    def take(self, webhook: PendingWebhook) -> float | None:
        """Deliver a message soon. If there is no room, returns in how many seconds there may be some."""
        if not self._has_room and len(self._running) >= self._width:
            return self._room_in_s()
        self._waiting.append(webhook)
        self._start_tries()
        return None

    @property
    def _width(self) -> int:
        return 1 if self.is_silent else WIDTH

    @property
    def _has_room(self) -> bool:
        num = len(self._waiting)
        return not self.is_silent and num < DEPTH and num * self._pace_s(monotonic()) < AHEAD_S

    def _pace_s(self, now_s: float) -> float:
        """From one end of a try to the next."""
        return max(self._try_s, now_s - self._last_end_s) / WIDTH

    def _room_in_s(self) -> float:
        """Each one that is put off comes after the ones before it, at the pace of the host."""
        if self.is_silent:
            rest_s = min(REST_S * 2.0 ** (self._num_failures - 1), LONGEST_REST_S)
            return rest_s * random.uniform(1, 2)
        now_s = monotonic()
        pace_s = self._pace_s(now_s)
        self._room_at_s = max(self._room_at_s, now_s + len(self._waiting) * pace_s) + pace_s
        return min(max(self._room_at_s - now_s, SHORTEST_WAIT_S), LONGEST_REST_S)

    def _start_tries(self) -> None:
        if not self._running:
            self._last_end_s = monotonic()
        while self._waiting and len(self._running) < self._width:
            webhook = self._waiting.popleft()
            if monotonic() < webhook.until_s:
                task = asyncio.create_task(self._try(webhook))
                self._running[task] = webhook
                task.add_done_callback(self._finish_try)

    async def _try(self, webhook: PendingWebhook) -> None:
        began_s, num_before = monotonic(), self._num_failures
        has_answered = await self._deliver(webhook)
        self._last_end_s = monotonic()
        self._try_s += (self._last_end_s - began_s - self._try_s) / 8
        if has_answered and self.is_silent:
            self._room_at_s = 0.0
        # Those that were under way together count as one failure.
        self._num_failures = 0 if has_answered else max(self._num_failures, min(num_before + 1, MAX_FAILURES))

    def _finish_try(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled():
            task.exception()
            self._start_tries()
