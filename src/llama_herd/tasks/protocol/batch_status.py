"""A batch's report, once a second, for `herd batch --watch` and `herd status`."""

from pydantic import BaseModel, ConfigDict, Field

#: A running batch that has not reported for this long is forgotten.
RUNNING_TTL_S = 10
#: How long the last report of an ended batch is kept.
ENDED_TTL_S = 3600


class BatchStatus(BaseModel):
    """A batch's last report. Unknown fields of other versions are ignored."""

    model_config = ConfigDict(frozen=True)

    run_id: str = Field(description="Its id.")
    state: str = Field(
        description="running, done, stopped (too many failed), left (its jobs go on without it) or cancelled."
    )
    input_name: str = Field(description="Name of its input.")
    num_rows: int = Field(default=0, description="Rows of the input; 0 if unknown.")
    num_before: int = Field(default=0, description="Rows that earlier starts of this run had finished.")
    num_done: int = Field(default=0, description="Rows that are answered.")
    num_failed: int = Field(default=0, description="Rows that failed.")
    num_under_way: int = Field(default=0, description="Rows that are submitted and not done.")
    prompt_tokens: int = Field(default=0, description="Tokens of the prompts.")
    completion_tokens: int = Field(default=0, description="Tokens of the answers.")
    rows_per_s: float = Field(default=0.0, description="Rows a second.")
    tokens_per_s: float = Field(default=0.0, description="Tokens a second.")
    unserved: str = Field(default="", description="Models of its rows that no worker has, with commas.")
    elapsed_s: float = Field(default=0.0, description="Seconds since its start.")
    beat_ms: int = Field(
        default=0, description="Time of the report by the clock of Redis, in unix milliseconds."
    )

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
