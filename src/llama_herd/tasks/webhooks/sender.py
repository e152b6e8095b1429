"""Sends what is due in the outboxes of all tenants. Each gateway has one, and one of them sends at a time.

Who waits for a webhook asks for nothing, so the sender also ends what no worker ends.
"""

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import Any

from redis.exceptions import ResponseError

from llama_herd.errors import HerdError
from llama_herd.tasks.connection.cancels import cancel_tasks
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import end_all_left
from llama_herd.tasks.ledger.outbox import Outbox, WebhookEntry
from llama_herd.tasks.ledger.redis_call import Dialogue, RedisCall, each
from llama_herd.tasks.ledger.webhook_configs import (
    StoredConfigs,
    WebhookConfig,
    all_configs,
    hold_sender_role,
)
from llama_herd.tasks.protocol.webhook import check_webhook_secret, check_webhook_url, host_of
from llama_herd.tasks.webhooks.connector import Connector
from llama_herd.tasks.webhooks.post import TIMEOUT_S, PostOutcome, post, signed_webhook

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
    """The queue of a tenant's host. deliver: makes a try, and returns whether the host has answered."""

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

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not (self._waiting or self._running)

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


log = logging.getLogger(__name__)

#: How often the sender looks for due messages, and for tenants with webhooks and their jobs that are to end;
#: and its pause while more is due than it takes at a time, since a gateway has others to serve.
POLL_S, CONFIG_S, PAUSE_S = 0.1, 1.0, 0.01
#: A sender that is not heard of for so long is replaced.
LEASE_S = 10.0
#: Most messages of a tenant that are taken at a time.
PAGE = 100
#: A message that was taken is due again after the time of so many tries, unless its outcome is noted before.
#: It is begun within half of that.
TAKEN_TRIES = 4
#: Most tries at a time.
MAX_TRIES = 256
#: How long a sender that ends may take for what it has under way.
STOP_S = 1.0

_HOUR_S = 3600
#: Seconds from each failed try of a message to the next one.
DELAYS_S = (5, 30, 120, 600, _HOUR_S, 3 * _HOUR_S, 6 * _HOUR_S, *[12 * _HOUR_S] * 5)
#: How long all tries take.
PATIENCE_S = sum(DELAYS_S)
#: Messages that failed together are tried apart: up to so much later.
JITTER = 0.25

Run = Callable[[Dialogue[Any]], Awaitable[Any]]


class Sender:
    """Sends webhooks as long as `running` lasts.

    run: runs a dialogue with Redis. ledger: of any tenant, it says how long all keep what it ends.
    """

    def __init__(
        self,
        run: Run,
        connector: Connector,
        ledger: Ledger,
        *,
        lease_s: float = LEASE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._run = run
        self._connector = connector
        self._ledger = ledger
        self._lease_s = lease_s
        self._timeout_s = timeout_s
        self._name = secrets.token_hex(8)
        self._is_sending = False
        self._asked_s = self._read_s = self._looked_s = float("-inf")
        self._configs: tuple[WebhookConfig, ...] = ()
        #: By tenant and host: a tenant may name any port there, also one that never answers.
        self._queues: dict[tuple[str, str], HostQueue] = {}
        self._slots = asyncio.Semaphore(MAX_TRIES)
        self._complaint = ""
        self._is_stopping = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send within the block. What is under way at its end is left to the next sender."""
        task = asyncio.create_task(self._send_until_stopped())
        try:
            yield
        finally:
            self._is_stopping.set()
            await asyncio.wait({task}, timeout=STOP_S)  # else what its last round has taken is not known
            await cancel_tasks(task)
            left = [webhook for queue in self._queues.values() for webhook in await queue.close()]
            if self._is_sending:  # let them be due now, and another gateway send them
                with suppress(HerdError, TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await self._run_all([Outbox(one.config.tenant).put_off(one.entry, 0) for one in left])
                        await self._run(hold_sender_role(self._name, 0))

    async def _send_until_stopped(self) -> None:
        """Send what is due, again and again; an error is logged and does not end it."""
        while not self._is_stopping.is_set():
            is_more = False
            try:
                is_more = await self._has_webhooks() and await self._hold_role() and await self._send_due()
                self._complaint = ""
            except HerdError as error:
                self._complain(str(error))
            except Exception as error:  # a failure of ours must not end it
                self._complain(type(error).__name__)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S if is_more else POLL_S if self._configs else CONFIG_S):
                    await self._is_stopping.wait()

    def _complain(self, complaint: str) -> None:
        """Log a complaint, once as long as it stays the same."""
        if complaint != self._complaint:
            log.warning("webhooks are not sent: %s", complaint)
        self._complaint = complaint

    async def _has_webhooks(self) -> bool:
        """Whether any tenant has webhooks. Without one a gateway writes nothing."""
        if monotonic() - self._read_s >= CONFIG_S:
            stored: StoredConfigs = await self._run(all_configs())
            self._configs, self._read_s = stored.configs, monotonic()
            self._forget_queues()
        return bool(self._configs)

    def _forget_queues(self) -> None:
        """Forget those of tenants that have no webhooks any more."""
        tenants = {one.tenant for one in self._configs}
        of_others = [one for one in self._queues if one[0] not in tenants and self._queues[one].is_idle]
        for one in of_others:
            del self._queues[one]

    async def _hold_role(self) -> bool:
        """Take or renew the role of the one gateway that sends. Returns whether this one has it."""
        now_s = monotonic()
        if now_s - self._asked_s >= self._lease_s / 3:
            self._is_sending = False
            self._is_sending = await self._run(hold_sender_role(self._name, int(1000 * self._lease_s)))
            self._asked_s = now_s
        return self._is_sending

    async def _end_left(self) -> None:
        """End what no worker ends, of each tenant that is told."""
        if monotonic() - self._looked_s >= CONFIG_S:
            for config in self._configs:
                await self._run(end_all_left(replace(self._ledger, tenant=config.tenant)))
            self._looked_s = monotonic()

    async def _send_due(self) -> bool:
        """Take due messages to the queues of their hosts. Returns whether more may be due."""
        await self._end_left()
        taken_s = monotonic()
        for_ms = int(1000 * TAKEN_TRIES * self._timeout_s)
        found = await self._run_all([Outbox(config.tenant).due(PAGE, for_ms) for config in self._configs])
        settled: list[RedisCall[None]] = []
        for config, entries in zip(self._configs, found, strict=True):
            if not isinstance(entries, ResponseError):  # of one tenant, as a spoilt key or a lacking right
                until_s = taken_s + TAKEN_TRIES / 2 * self._timeout_s
                calls = [self._queue_or_settle(PendingWebhook(config, entry, until_s)) for entry in entries]
                settled += filter(None, calls)
        await self._run_all(settled)
        return any(isinstance(entries, list) and len(entries) == PAGE for entries in found)

    async def _run_all(self, calls: list[RedisCall[Any]]) -> list[Any]:
        return list(await self._run(each(calls))) if calls else []

    def _queue_or_settle(self, webhook: PendingWebhook) -> RedisCall[None] | None:
        """Put a message into its host's queue. If that takes it not, returns what to note in the outbox."""
        config, entry = webhook.config, webhook.entry
        outbox, host = Outbox(config.tenant), host_of(entry.url or config.url)
        if refusal := _refusal(config, entry):
            return self._give_up(outbox, entry.failed(refusal))
        queue = self._queues.setdefault((config.tenant, host), HostQueue(self._deliver))
        room_in_s = queue.take(webhook)
        if room_in_s is None:
            return None
        if queue.is_silent and time() - entry.ended_ms / 1000 > PATIENCE_S * 1.25:
            return self._give_up(outbox, entry.failed(f"{host} does not answer"))
        return outbox.put_off(entry, int(1000 * room_in_s))

    async def _deliver(self, webhook: PendingWebhook) -> bool:
        """Make a try, and note what became of it. Returns whether the host has answered at all."""
        config, entry, outbox = webhook.config, webhook.entry, Outbox(webhook.config.tenant)
        try:
            async with self._slots:
                own = (entry.secret,) if entry.secret else config.secrets_at(int(1000 * time()))
                headers, body = signed_webhook(entry, own)
                answer = await post(self._connector, entry.url or config.url, headers, body, self._timeout_s)
        except Exception as error:  # one message that nobody has foreseen holds up no other
            answer = PostOutcome(f"the gateway has failed at it: {type(error).__name__}")
        if not answer.error:
            outcome = outbox.sent(entry)
        else:
            failed = entry.failed(answer.error)
            wait_ms = None if answer.is_final else delay_ms(failed.tries)
            outcome = self._give_up(outbox, failed) if wait_ms is None else outbox.put_off(failed, wait_ms)
        with suppress(HerdError):  # it is due again later, and will be sent twice
            await self._run(outcome)
        return not answer.is_silent

    def _give_up(self, outbox: Outbox, entry: WebhookEntry) -> RedisCall[None]:
        log.warning("webhook %s of tenant %s is given up: %s", entry.message, outbox.tenant, entry.error)
        return outbox.give_up(entry)


def _refusal(config: WebhookConfig, entry: WebhookEntry) -> str:
    """Why a job's own address may not be called; empty if it may. It and its secret may be any text."""
    if entry.url is None:
        return ""
    what = "address"
    try:
        check_webhook_url(entry.url)
        what = "secret"
        if entry.secret is not None:
            check_webhook_secret(entry.secret)
    except ValueError as error:
        return f"the job's {what} {error}"
    host = host_of(entry.url)
    if host in (host_of(config.url), *config.hosts):
        return ""
    return f"the tenant does not allow the host {host}. Fix: herd webhooks set with --host {host}"


def delay_ms(num_tries: int) -> int | None:
    """How long to wait after so many failed tries; None: the message is given up."""
    if num_tries > len(DELAYS_S):
        return None
    return int(1000 * DELAYS_S[num_tries - 1] * random.uniform(1, 1 + JITTER))
