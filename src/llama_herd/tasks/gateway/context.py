"""What all requests of a gateway share: clients of the tenants, limits, the batches that run, chores."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from llama_herd.errors import HerdError
from llama_herd.tasks.feeder.batch_count import BatchCount
from llama_herd.tasks.feeder.batch_feeder import BatchFeeder
from llama_herd.tasks.feeder.feeder_limits import FeederLimits
from llama_herd.tasks.gateway.body import parse_object, read_body
from llama_herd.tasks.gateway.concurrency import ConcurrencyLimit
from llama_herd.tasks.gateway.identity import Authenticator, Caller
from llama_herd.tasks.gateway.rate_limit import BODY_BYTES, RateLimit
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.tenant_client import OUTAGE_S, TenantClient, TenantClients
from llama_herd.tasks.ledger.stored_files import Quota
from llama_herd.tasks.security.api_keys import KeyRole
from llama_herd.tasks.storage.open_storage import open_storage
from llama_herd.tasks.task_cancel import cancel_tasks
from llama_herd.tasks.webhooks.connector import Connector
from llama_herd.tasks.webhooks.sender import Sender

T = TypeVar("T")

#: Pause before a cancel that Redis has not taken is repeated.
RETRY_S = 1.0


class GatewayContext:
    """The shared state of one gateway from start to end. Each request finds it at `request.app.state`."""

    def __init__(self, settings: GatewaySettings, batches: BatchCount) -> None:
        """batches: counts the batches that the gateway runs."""
        self.settings = settings
        self.clients = TenantClients(settings)
        self.authenticator = Authenticator(settings, self.clients.connections)
        self.concurrency = ConcurrencyLimit(settings)
        self.storage = open_storage(settings.gateway_files)
        self.feeder = BatchFeeder(settings, self.storage, _feeder_limits(settings), batches)
        self.sender = Sender(
            self.clients.connections.run, Connector(allows_private=settings.gateway_webhook_private)
        )
        self._rate_limit = RateLimit(settings)
        self._parsing = asyncio.Lock()
        #: Set once the gateway is to end: streams that can be picked up elsewhere end at once.
        self.is_closing = asyncio.Event()
        #: Cancels of jobs whose clients have gone away.
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
            await cancel_tasks(*self._chores)
            await self.clients.close()

    async def admit(self, request: Request, needs: KeyRole) -> tuple[Caller, TenantClient]:
        """Identify the caller, charge its rate, and return it with its tenant's client. Raises Problem."""
        caller = await self.authenticator.admit(request, needs)
        self._rate_limit.charge(caller.fingerprint)
        return caller, self.clients.for_tenant(caller.tenant)

    async def read(self, request: Request, caller: Caller, parse: Callable[[dict[str, Any]], T]) -> T:
        """Read a request's body, and return what `parse` makes of it. Raises Problem, and its errors.

        The event loop stands still while a body is parsed. So bodies are parsed one at a time, and others
        have their turn after each.
        """
        raw = await read_body(request, self.settings)
        self._rate_limit.charge(caller.fingerprint, len(raw) / BODY_BYTES)
        async with self._parsing:
            found = parse(parse_object(raw, self.settings))
            await asyncio.sleep(0)
            return found

    def charge(self, caller: Caller, num: int) -> None:
        """Charge the caller's rate for further requests. Raises Problem."""
        self._rate_limit.charge(caller.fingerprint, num)

    def abandon(self, client: TenantClient, *job_ids: str) -> None:
        """Cancel, in the background, the jobs of a request whose client has gone away."""
        task = asyncio.create_task(_cancel_patiently(client, job_ids))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


def _feeder_limits(settings: GatewaySettings) -> FeederLimits:
    return FeederLimits(
        settings.gateway_batches,
        settings.gateway_batch_rows,
        Quota(settings.gateway_max_tenant_rows, settings.gateway_max_key_rows),
        settings.gateway_batch_lease_s,
        settings.gateway_storage_lost_s,
    )


def context_of(request: Request) -> GatewayContext:
    """The context of the gateway that answers a request."""
    context: GatewayContext = request.app.state.context
    return context


async def _cancel_patiently(client: TenantClient, job_ids: Sequence[str]) -> None:
    """Cancel jobs, again and again while Redis is away."""
    for _ in range(int(OUTAGE_S / RETRY_S)):
        try:
            await client.cancel(job_ids)
        except HerdError:
            await asyncio.sleep(RETRY_S)
        else:
            return
