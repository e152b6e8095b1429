"""A batch's report, once a second, for `herd batch --watch` and `herd status`."""

from pydantic import BaseModel, ConfigDict

#: A running batch that has not reported for this long is forgotten.
RUNNING_TTL_S = 10
#: How long the last report of an ended batch is kept.
ENDED_TTL_S = 3600


class BatchStatus(BaseModel):
    """A batch's last report. Unknown fields of other versions are ignored.

    state: running, done, stopped (too many failed), left (its jobs go on without it) or cancelled.
    num_rows: rows of the input; 0 if unknown. num_before: rows that earlier starts of this run had finished.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    state: str
    input_name: str
    num_rows: int = 0
    num_before: int = 0
    num_done: int = 0
    num_failed: int = 0
    num_under_way: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rows_per_s: float = 0.0
    tokens_per_s: float = 0.0
    elapsed_s: float = 0.0
    #: Time of the report by the clock of Redis; the ledger fills it in.
    beat_ms: int = 0

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def ttl_s(self) -> int:
        return RUNNING_TTL_S if self.is_running else ENDED_TTL_S

    @property
    def left_s(self) -> float | None:
        """Seconds that the remaining rows take at this rate; None if unknown."""
        num_left = self.num_rows - self.num_done - self.num_failed
        if not self.num_rows or not self.rows_per_s:
            return None
        return max(0, num_left) / self.rows_per_s
