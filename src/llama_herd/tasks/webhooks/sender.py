"""Sends what is due in the outboxes of all tenants. Each gateway has one, and one of them sends at a time."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic, time
from typing import Any

from redis.exceptions import ResponseError

from llama_herd.errors import HerdError
from llama_herd.tasks.ending import end
from llama_herd.tasks.ledger.outbox import Outbox, WebhookEntry
from llama_herd.tasks.ledger.redis_call import Dialogue, IndependentCalls, RedisCall, ask
from llama_herd.tasks.ledger.webhook_configs import (
    StoredConfigs,
    WebhookConfig,
    all_configs,
    hold_sender_role,
)
from llama_herd.tasks.webhook_secret import check_webhook_secret
from llama_herd.tasks.webhook_url import check_webhook_url, host_of
from llama_herd.tasks.webhooks.back_off import PATIENCE_S, delay_ms
from llama_herd.tasks.webhooks.connection import Connector
from llama_herd.tasks.webhooks.lane import Lane, Parcel
from llama_herd.tasks.webhooks.message import body_of, headers_of
from llama_herd.tasks.webhooks.post import TIMEOUT_S, Answer, post

log = logging.getLogger(__name__)

#: How often it looks for what is due, and for who wants to be told; and its pause where more is due than it
#: takes, since a gateway has others to serve.
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
#: How long the last words of a sender may take.
FAREWELL_S = 1.0

Run = Callable[[Dialogue[Any]], Awaitable[Any]]


class Sender:
    """Sends webhooks as long as `running` lasts. run: runs a dialogue with Redis."""

    def __init__(
        self, run: Run, connector: Connector, *, lease_s: float = LEASE_S, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._run = run
        self._connector = connector
        self._lease_s = lease_s
        self._timeout_s = timeout_s
        self._name = secrets.token_hex(8)
        self._is_ours = False
        self._asked_s = self._read_s = float("-inf")
        self._configs: tuple[WebhookConfig, ...] = ()
        self._lanes: dict[str, Lane] = {}
        self._places = asyncio.Semaphore(MAX_TRIES)
        self._complaint = ""
        self._is_ending = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send meanwhile. What is under way at the end is left to the next sender."""
        task = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            self._is_ending.set()
            await asyncio.wait({task}, timeout=FAREWELL_S)  # else what its last round has taken is not known
            await end(task)
            left = [parcel for lane in self._lanes.values() for parcel in await lane.close()]
            with suppress(HerdError, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self._leave(left)

    async def _leave(self, parcels: list[Parcel]) -> None:
        if self._is_ours:
            outboxes = [(Outbox(parcel.config.tenant), parcel.entry) for parcel in parcels]
            await self._all([outbox.put_off(entry, 0) for outbox, entry in outboxes])
            await self._run(ask(hold_sender_role(self._name, 0)))

    async def _go_on(self) -> None:
        while not self._is_ending.is_set():
            is_more = False
            try:
                is_more = await self._is_wanted() and await self._holds_role() and await self._round()
                self._complaint = ""
            except HerdError as error:
                self._complain(str(error))
            except Exception as error:  # a failure of ours must not end it
                self._complain(type(error).__name__)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S if is_more else POLL_S if self._configs else CONFIG_S):
                    await self._is_ending.wait()

    def _complain(self, complaint: str) -> None:
        """Once, as long as it stays the same."""
        if complaint != self._complaint:
            log.warning("webhooks are not sent: %s", complaint)
        self._complaint = complaint

    async def _is_wanted(self) -> bool:
        """Whether any tenant has webhooks. Without one a gateway writes nothing."""
        if monotonic() - self._read_s >= CONFIG_S:
            stored: StoredConfigs = await self._run(ask(all_configs()))
            self._configs, self._read_s = stored.configs, monotonic()
        return bool(self._configs)

    async def _holds_role(self) -> bool:
        """Whether this is the one that sends. Asks again after a third of the lease."""
        now_s = monotonic()
        if now_s - self._asked_s >= self._lease_s / 3:
            self._is_ours = False
            self._is_ours = await self._run(ask(hold_sender_role(self._name, int(1000 * self._lease_s))))
            self._asked_s = now_s
        return self._is_ours

    async def _round(self) -> bool:
        """Take what is due. Returns whether there may be more."""
        taken_s = monotonic()
        for_ms = int(1000 * TAKEN_TRIES * self._timeout_s)
        calls = [Outbox(config.tenant).due(PAGE, for_ms) for config in self._configs]
        found = await self._all(calls)
        settled: list[RedisCall[None]] = []
        for config, entries in zip(self._configs, found, strict=True):
            if not isinstance(entries, ResponseError):  # of one tenant, as a spoilt key or a lacking right
                until_s = taken_s + TAKEN_TRIES / 2 * self._timeout_s
                settled += [call for entry in entries for call in self._take(Parcel(config, entry, until_s))]
        await self._all(settled)
        return any(isinstance(entries, list) and len(entries) == PAGE for entries in found)

    async def _all(self, calls: list[RedisCall[Any]]) -> list[Any]:
        return list(await self._run(_apart(calls))) if calls else []

    def _take(self, parcel: Parcel) -> list[RedisCall[None]]:
        """Put a message into its lane; or, if it does not go there, what to note in its outbox."""
        config, entry = parcel.config, parcel.entry
        outbox, host = Outbox(config.tenant), host_of(entry.url or config.url)
        if refusal := _refusal(config, entry):
            return [self._given_up(outbox, entry.failed(refusal))]
        lane = self._lanes.setdefault(host, Lane(self._deliver))
        room_in_s = lane.take(parcel)
        if room_in_s is None:
            return []
        if lane.is_silent and time() - entry.ended_ms / 1000 > PATIENCE_S * 1.25:
            return [self._given_up(outbox, entry.failed(f"{host} does not answer"))]
        return [outbox.put_off(entry, int(1000 * room_in_s))]

    async def _deliver(self, parcel: Parcel) -> bool:
        """Make a try, and note what became of it. Returns whether the host has answered at all."""
        config, entry, outbox = parcel.config, parcel.entry, Outbox(parcel.config.tenant)
        async with self._places:
            answer = await self._post(config, entry)
        with suppress(HerdError):  # it is due again later, and will be sent twice
            await self._run(ask(self._outcome(outbox, entry, answer)))
        return not answer.is_silent

    async def _post(self, config: WebhookConfig, entry: WebhookEntry) -> Answer:
        try:
            body = body_of(entry)
            headers = headers_of(entry, body, entry.secret or config.secret)
            url = entry.url or config.url
            return await post(self._connector, url, headers, body.encode(), self._timeout_s)
        except Exception as error:  # one message that nobody has foreseen holds up no other
            return Answer(f"the gateway has failed at it: {type(error).__name__}")

    def _outcome(self, outbox: Outbox, entry: WebhookEntry, answer: Answer) -> RedisCall[None]:
        if not answer.error:
            return outbox.sent(entry)
        failed = entry.failed(answer.error)
        wait_ms = None if answer.is_final else delay_ms(failed.tries)
        return self._given_up(outbox, failed) if wait_ms is None else outbox.put_off(failed, wait_ms)

    def _given_up(self, outbox: Outbox, entry: WebhookEntry) -> RedisCall[None]:
        log.warning("webhook %s of tenant %s is given up: %s", entry.message, outbox.tenant, entry.error)
        return outbox.give_up(entry)


def _refusal(config: WebhookConfig, entry: WebhookEntry) -> str:
    """Why a job's own address may not be called; empty if it may. It and its secret may be any text."""
    if entry.url is None:
        return ""
    try:
        check_webhook_url(entry.url)
    except ValueError as error:
        return f"the job's address {error}"
    try:
        if entry.secret is not None:
            check_webhook_secret(entry.secret)
    except ValueError as error:
        return f"the job's secret {error}"
    host = host_of(entry.url)
    if host in (host_of(config.url), *config.hosts):
        return ""
    return f"the tenant does not allow the host {host}. Fix: herd webhooks set with --host {host}"


def _apart(calls: list[RedisCall[Any]]) -> Dialogue[list[Any]]:
    answers: list[Any] = yield IndependentCalls(calls)
    return answers
