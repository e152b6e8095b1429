"""The state that all requests of a gateway share: tenants' queues, limits, and work after their end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from llama_herd.errors import HerdError
from llama_herd.tasks.ending import end
from llama_herd.tasks.feeder.batch_count import BatchCount
from llama_herd.tasks.feeder.feeder import Feeder
from llama_herd.tasks.feeder.limits import Limits
from llama_herd.tasks.gateway.body import object_of
from llama_herd.tasks.gateway.desk import OUTAGE_S, Desk, Desks
from llama_herd.tasks.gateway.identity import Caller, Gate
from llama_herd.tasks.gateway.limits import Places, read_body
from llama_herd.tasks.gateway.rates import BODY_BYTES, Rates
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.stored_files import Quota
from llama_herd.tasks.security.api_keys import KeyRole
from llama_herd.tasks.storage.open_storage import open_storage
from llama_herd.tasks.webhooks.connection import Connector
from llama_herd.tasks.webhooks.sender import Sender

T = TypeVar("T")

#: Pause before a cancel that Redis has not taken is repeated.
RETRY_S = 1.0


class Door:
    """One gateway from start to end: its tenants' queues, gate, limits, feeder and sender of webhooks."""

    def __init__(self, settings: GatewaySettings, batches: BatchCount) -> None:
        """Make the door; `batches` counts the batches that it runs."""
        self.settings = settings
        self.desks = Desks(settings)
        self.gate = Gate(settings, self.desks.line)
        self.places = Places(settings)
        self.storage = open_storage(settings.gateway_files)
        self.feeder = Feeder(settings, self.storage, _limits(settings), batches)
        self.sender = Sender(self.desks.line.run, Connector(allows_private=settings.gateway_webhook_private))
        self._rates = Rates(settings)
        self._reading = asyncio.Lock()
        #: Set once the gateway is to end: streams that can be picked up elsewhere end at once.
        self.is_closing = asyncio.Event()
        self._chores: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hold the connections to Redis, run batches, and send webhooks."""
        self.feeder.start()
        try:
            async with self.sender.running():
                yield
        finally:
            await asyncio.to_thread(self.feeder.stop)
            if self._chores:
                await asyncio.wait(self._chores, timeout=RETRY_S)
            await end(*self._chores)
            await self.desks.close()

    async def admit(self, request: Request, needs: KeyRole) -> tuple[Caller, Desk]:
        """Identify the caller, charge its rate, and return it with its tenant's desk. Raises Problem."""
        caller = await self.gate.admit(request, needs)
        self._rates.charge(caller.fingerprint)
        return caller, self.desks.of(caller.tenant)

    async def read(self, request: Request, caller: Caller, make: Callable[[dict[str, Any]], T]) -> T:
        """Read a request's body and return what `make` makes of it. Raises Problem, and what `make` raises.

        Nothing else runs meanwhile. So one body at a time is read, and after each others have their turn.
        """
        raw = await read_body(request, self.settings)
        self._rates.charge(caller.fingerprint, len(raw) / BODY_BYTES)
        async with self._reading:
            found = make(object_of(raw, self.settings))
            await asyncio.sleep(0)
            return found

    def charge(self, caller: Caller, num: int) -> None:
        """Count so many requests more. Raises Problem."""
        self._rates.charge(caller.fingerprint, num)

    def leave(self, desk: Desk, *job_ids: str) -> None:
        """Cancel the jobs of a client that has gone away."""
        task = asyncio.create_task(_cancel(desk, job_ids))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


def _limits(settings: GatewaySettings) -> Limits:
    return Limits(
        settings.gateway_batches,
        settings.gateway_batch_rows,
        Quota(settings.gateway_max_tenant_rows, settings.gateway_max_key_rows),
        settings.gateway_batch_lease_s,
        settings.gateway_storage_lost_s,
    )


def door_of(request: Request) -> Door:
    door: Door = request.app.state.door
    return door


async def _cancel(desk: Desk, job_ids: Sequence[str]) -> None:
    """Cancel jobs, again and again while Redis is away."""
    for _ in range(int(OUTAGE_S / RETRY_S)):
        try:
            await desk.cancel(job_ids)
        except HerdError:
            await asyncio.sleep(RETRY_S)
        else:
            return
