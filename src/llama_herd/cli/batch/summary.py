"""The summary of a batch, for people and for programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_herd.tasks.batch.batch_progress import Percentiles
from llama_herd.tasks.protocol.batch_status import BatchStatus


@dataclass(frozen=True)
class Summary:
    """The last status, and facts that are known only at the end.

    prefix_cache_hits: prompt tokens that the workers found in their caches; None if no worker is up.
    failures: where the failed rows are, and why most of them failed; empty if none has.
    """

    status: BatchStatus
    ttft: Percentiles
    prefix_cache_hits: int | None
    failures: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.status.model_dump(exclude={"beat_ms"}),
            "ttft_p50_s": self.ttft.p50_s,
            "ttft_p95_s": self.ttft.p95_s,
            "prefix_cache_hits": self.prefix_cache_hits,
            "failures": self.failures,
        }

    def lines(self) -> Sequence[str]:
        """The summary for people, a fact a line."""
        status = self.status
        rows = f"{status.num_done:,} rows done, {status.num_failed:,} failed in {_duration(status.elapsed_s)}"
        if status.num_before:
            rows += f" ({status.num_before:,} of them before this start)"
        tokens = f"{status.prompt_tokens:,} in, {status.completion_tokens:,} out"
        speed = f"{status.rows_per_s:,.1f} rows/s, {status.tokens_per_s:,.0f} tokens/s"
        pairs = {"rows": rows, "tokens": tokens, "speed": speed}
        if self.failures:
            pairs["failed rows"] = self.failures
        if self.ttft.p50_s is not None:
            pairs["first token"] = f"p50 {self.ttft.p50_s:.2f} s, p95 {self.ttft.p95_s:.2f} s"
        if self.prefix_cache_hits is not None:
            pairs["prefix cache"] = (
                f"{self.prefix_cache_hits:,} prompt tokens found, by the workers' last reports"
            )
        return [f"{name:<13}{value}" for name, value in pairs.items()]


def progress_line(status: BatchStatus) -> str:
    """A batch's status in one line."""
    num_finished = status.num_done + status.num_failed
    rows = f"{num_finished:,} of {status.num_rows:,} rows" if status.num_rows else f"{num_finished:,} rows"
    parts = [
        f"{rows}, {status.num_failed:,} failed, {status.num_under_way:,} under way",
        f"{status.rows_per_s:,.1f} rows/s, {status.tokens_per_s:,.0f} tokens/s",
    ]
    if status.left_s is not None and status.is_running:
        parts.append(f"{_duration(status.left_s)} left")
    if status.unserved and status.is_running:
        parts.append(f"no worker serves {status.unserved}")
    return "; ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
