"""What all requests of a gateway share: clients of the tenants, limits, the batches that run, chores."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from math import ceil
from pathlib import Path
from time import monotonic

from llama_herd.counted import counted
from llama_herd.errors import BadInput, HerdError
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.connection.cancels import cancel_tasks
from llama_herd.tasks.feeder.batch_execution import BatchCount
from llama_herd.tasks.feeder.batch_feeder import BatchFeeder
from llama_herd.tasks.feeder.batch_lease import FeederLimits
from llama_herd.tasks.gateway.identity import Authenticator, Caller
from llama_herd.tasks.gateway.problem import PASSES, Problem, bad_request
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.storage_threads import in_thread
from llama_herd.tasks.gateway.tenant_client import OUTAGE_S, TenantClient
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.stored_files import Quota
from llama_herd.tasks.storage.bucket import SCHEME, Bucket
from llama_herd.tasks.storage.folder import Folder
from llama_herd.tasks.storage.storage import Storage
from llama_herd.tasks.webhooks.connector import Connector
from llama_herd.tasks.webhooks.sender import Sender

#: A key that was idle may do at once what it may do in so many seconds.
BURST_S = 10.0


class RateLimit:
    """A token bucket for each key. A request is let in unless its bucket is empty, and may leave a debt."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._per_s = settings.gateway_key_rate
        self._most = BURST_S * self._per_s
        #: By fingerprint: the requests that were left, and when, by time.monotonic. The last seen come last.
        self._left = OrderedDict[str, tuple[float, float]]()

    def charge(self, caller: Caller, cost: float, own: float) -> None:
        """Take a request's cost. Raises Problem if none is left. A caller without a key has no limit.

        own: what the same request has cost so far, by which it must not be refused.
        """
        fingerprint = caller.fingerprint
        if fingerprint is None or not self._per_s:
            return
        now_s = monotonic()
        self._forget_full(now_s)
        left = self._left_of(fingerprint, now_s)
        is_let_in = left + own > 0
        self._left[fingerprint] = left - cost if is_let_in else left, now_s
        self._left.move_to_end(fingerprint)
        if not is_let_in:
            message = f"this key may send {self._per_s:g} requests a second. Fix: HERD_GATEWAY_KEY_RATE"
            wait_s = max(1, ceil((1 - left) / self._per_s))
            raise Problem(429, "rate_limit_exceeded", message, headers={"Retry-After": str(wait_s)})

    def _left_of(self, fingerprint: str, now_s: float) -> float:
        left, seen_s = self._left.get(fingerprint, (self._most, now_s))
        return min(self._most, left + self._per_s * (now_s - seen_s))

    def _forget_full(self, now_s: float) -> None:
        """Forget the longest unseen, as long as their buckets are full: so is that of a key never seen."""
        while self._left and self._left_of(first := next(iter(self._left)), now_s) >= self._most:
            del self._left[first]


#: What one slot holds.
SLOT_BYTES = 1 << 20


class ConcurrencyLimit:
    """Limits how many answers are under way at a time, in all and for each tenant."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._most = settings.gateway_max_streams
        self._most_of_one = settings.gateway_max_tenant_streams
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    @contextmanager
    def slots(self, tenant: str, num: int = 1, num_bytes: int = 0) -> Iterator[None]:
        """Take slots for answers within the block. Raises Problem if too few are free.

        num_bytes: of what is held until it is sent; each MiB counts as an answer, so that the sum is bounded.
        """
        most = min(self._most, self._most_of_one)
        if num > most:
            fix = "Fix: fewer prompts at once, or no stream"
            raise bad_request(f"{num} streams at once, and at most {most} may be. {fix}", "too_many_streams")
        num = max(num, min(1 + num_bytes // SLOT_BYTES, most))
        if self._taken[tenant] + num > self._most_of_one:
            has = counted(self._most_of_one, "answer")
            message = f"this tenant has {has} under way, the most that may be"
            raise Problem(429, "too_many_streams", message, headers=PASSES)
        if self.num_taken + num > self._most:
            raise Problem(503, "too_many_streams", "too many answers are under way here", headers=PASSES)
        self._taken[tenant] += num
        try:
            yield
        finally:
            self._taken[tenant] -= num
            if not self._taken[tenant]:
                del self._taken[tenant]


def storage_of(settings: GatewaySettings) -> Storage:
    """Where the gateway's files lie. Raises BadInput."""
    if settings.gateway_files.startswith(SCHEME):
        return Bucket(settings.gateway_files)
    try:
        own = settings.gateway_files or Path.home() / ".local/share/llama-herd/files"
    except RuntimeError:
        raise BadInput("this user has no home folder to keep files in. Fix: HERD_GATEWAY_FILES") from None
    return Folder(Path(own))


#: Tenants of which a gateway keeps a client, some 10 kB each: those that have called last.
MAX_CLIENTS = 1000
#: Pause before a cancel that Redis has not taken is repeated.
RETRY_S = 1.0


class GatewayContext:
    """The shared state of one gateway from start to end. Each request finds it at `request.app.state`."""

    def __init__(self, settings: GatewaySettings, batches: BatchCount, storage: Storage) -> None:
        """batches: counts the batches that the gateway runs."""
        self.settings = settings
        self.connections = SharedConnections(settings.redis_url)
        self._clients: dict[str, TenantClient] = {}  # by tenant; who has called last comes last
        self.authenticator = Authenticator(settings, self.connections)
        self.concurrency = ConcurrencyLimit(settings)
        self.storage = storage
        self._storage_id: str | None = None  # once it has been told
        limits = FeederLimits(
            settings.gateway_batches,
            settings.gateway_batch_rows,
            Quota(settings.gateway_max_tenant_rows, settings.gateway_max_key_rows),
            settings.gateway_batch_lease_s,
            settings.gateway_storage_lost_s,
        )
        self.feeder = BatchFeeder(settings, self.storage, limits, batches)
        connector = Connector(allows_private=settings.gateway_webhook_private)
        self.sender = Sender(self.connections.run, connector, Ledger.from_settings(settings))
        self.rate_limit = RateLimit(settings)
        #: Held while a body is parsed.
        self.parsing = asyncio.Lock()
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
            for client in self._clients.values():
                await client.close()
            await self.connections.close()

    def client_of(self, tenant: str) -> TenantClient:
        """The client of a tenant; made with its first request. One that is forgotten serves those it has."""
        client = self._clients.pop(tenant, None) or TenantClient(self.settings, tenant, self.connections)
        self._clients[tenant] = client
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return client

    async def storage_id(self) -> str:
        """The id of the storage for files. Raises StorageUnavailable."""
        if self._storage_id is None:
            self._storage_id = await in_thread(lambda: self.storage.id)
        return self._storage_id

    def abandon(self, client: TenantClient, *job_ids: str) -> None:
        """Cancel, in the background, the jobs of a request whose client has gone away."""
        task = asyncio.create_task(_cancel_patiently(client, job_ids))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


async def _cancel_patiently(client: TenantClient, job_ids: Sequence[str]) -> None:
    """Cancel jobs, again and again while Redis is away."""
    for _ in range(int(OUTAGE_S / RETRY_S)):
        try:
            await client.cancel(job_ids)
        except HerdError:
            await asyncio.sleep(RETRY_S)
        else:
            return
