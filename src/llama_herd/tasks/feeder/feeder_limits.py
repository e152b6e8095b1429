"""Limits of one process's feeder: batches and rows at a time."""

from dataclasses import dataclass

from llama_herd.tasks.ledger.stored_files import Quota


@dataclass(frozen=True)
class FeederLimits:
    """The most that the feeder of a process takes on.

    max_batches: at a time. max_rows: of a batch. rows: under way in all batches. lease_s: see Lease.
    storage_lost_s: after so long a storage that no gateway reaches counts as lost.
    """

    max_batches: int
    max_rows: int
    rows: Quota
    lease_s: float
    storage_lost_s: float
