"""A worker towards the ledger."""

from dataclasses import dataclass, field
from uuid import uuid4

from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger


@dataclass(frozen=True)
class LeaseHolder:
    """Who owns jobs, and how it speaks to the ledger; each start of a worker is another owner."""

    redis: Redis
    ledger: Ledger
    id: str = field(default_factory=lambda: uuid4().hex)
