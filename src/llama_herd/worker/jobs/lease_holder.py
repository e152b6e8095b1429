"""A worker as the ledger knows it."""

from dataclasses import dataclass, field
from uuid import uuid4

from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger


@dataclass(frozen=True)
class LeaseHolder:
    """A worker's id as the owner of jobs, and its access to the ledger. Each start has a new id."""

    redis: Redis
    ledger: Ledger
    id: str = field(default_factory=lambda: uuid4().hex)
