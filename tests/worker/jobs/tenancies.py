"""Tenancies without a worker around them."""

from typing import cast

from celery import Celery
from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.worker.jobs.event_log import EventAuthor
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.jobs.tenancy import ClaimedJobs, RevokedIds, Tenancies, Tenancy
from llama_herd.worker.settings import WorkerSettings


def new_tenancy(
    redis: Redis,
    ledger: Ledger | None = None,
    *,
    owner: str = "owner-1",
    app: Celery | None = None,
    max_ids: int = 10,
    **settings: object,
) -> Tenancy:
    """What a worker of the model m keeps of the ledger's tenant."""
    ledger = ledger or Ledger()
    return Tenancy(
        WorkerSettings.model_validate({"tenant": ledger.tenant, "model_name": "m", **settings}),
        redis,
        ledger,
        owner,
        ClaimedJobs(),
        StreamReader(redis, ledger, max_tokens=4096, max_prompt_tokens=4096),
        EventAuthor("w@test", "m", ledger.tenant),
        cast(Celery, app),
        RevokedIds(max_ids),
    )


def alone(tenancy: Tenancy) -> Tenancies:
    """Those of a worker of one tenant."""
    return Tenancies([tenancy])
