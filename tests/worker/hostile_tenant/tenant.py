"""A tenant of the one worker, as its client sees it."""

from dataclasses import dataclass
from time import monotonic

from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.local.processes import PATIENCE_S, wait_until
from tests.worker.hostile_tenant.attacks import GLOBEX, SHORT

ACME = "acme"
#: Of the worker.
SLOTS = 4


@dataclass(frozen=True)
class Tenant:
    """One whose jobs the worker runs."""

    name: str
    client: Client
    root: Redis

    @property
    def worker(self) -> WorkerStatus:
        """What the one worker says of itself to this tenant."""
        (worker,) = self.client.workers()
        return worker

    def answered_s(self) -> float:
        """How long a short job takes, until Celery has its result."""
        since_s = monotonic()
        job_id = self.client.submit(prompt="a tale", sampling=SHORT)
        assert self.client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "length"
        key = Keys(self.name).result_key(job_id)
        wait_until(lambda: self.root.exists(key), "the result is stored")
        return monotonic() - since_s


def clean(root: Redis) -> None:
    """Forget all that is the hostile tenant's."""
    if names := [key for key in root.scan_iter(f"*{GLOBEX}*") if b"+" not in key]:
        root.delete(*names)
