"""The progress of a batch: which rows are done, tokens, speed."""

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from time import monotonic
from typing import NamedTuple, Self

from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.protocol.batch_status import BatchStatus

#: Seconds over which the speed is measured.
SPAN_S = 15.0


@dataclass(frozen=True)
class Percentiles:
    """The seconds that half and 95 % of the cases do not exceed; None without cases."""

    p50_s: float | None
    p95_s: float | None

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> Self:
        return cls(nearest_rank(seconds, 0.50), nearest_rank(seconds, 0.95))


def nearest_rank(seconds: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of the values does not exceed; None without values."""
    ordered = sorted(seconds)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


class DoneRows:
    """The numbers of rows that have an answer or have failed: a set that is small if they are dense."""

    def __init__(self) -> None:
        self.num_failed = 0
        self._bits = bytearray()
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __contains__(self, line: int) -> bool:
        byte, bit = divmod(line, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)

    @property
    def num_answered(self) -> int:
        return self._num - self.num_failed

    def add(self, line: int, *, has_failed: bool = False) -> None:
        if line in self:
            return
        self.num_failed += has_failed
        byte, bit = divmod(line, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 1 - len(self._bits)))
        self._bits[byte] |= 1 << bit
        self._num += 1


class _Mark(NamedTuple):
    """The totals at some time."""

    at_s: float
    num_rows: int
    num_tokens: int


@dataclass(eq=False)
class BatchProgress:
    """Counts the rows of a batch as they end. done: the rows that ended before this start."""

    run_id: str
    input_name: str
    num_rows: int | None
    done: InitVar[DoneRows]
    _codes: Counter[str] = field(init=False, default_factory=Counter)
    _messages: dict[str, str] = field(init=False, default_factory=dict)  # the first of each code
    _prompt_tokens: int = field(init=False, default=0)
    _completion_tokens: int = field(init=False, default=0)
    _ttft_s: "array[float]" = field(init=False, default_factory=lambda: array("f"))
    _started_s: float = field(init=False, default_factory=monotonic)

    def __post_init__(self, done: DoneRows) -> None:
        self._first = BatchStatus(
            run_id=self.run_id,
            state="running",
            input_name=self.input_name,
            num_rows=self.num_rows or 0,
            num_before=len(done),
        )
        self._num_before = self._num_done = done.num_answered
        self.num_failed = done.num_failed
        self._marks = deque([_Mark(self._started_s, 0, 0)])

    @property
    def num_here(self) -> int:
        """Rows that were done since this start."""
        return self._num_done + self.num_failed - self._first.num_before

    @property
    def num_done_here(self) -> int:
        return self._num_done - self._num_before

    @property
    def commonest_failure(self) -> str:
        """The code that most rows failed by since this start, and an example; empty if none failed."""
        for code, num in self._codes.most_common(1):
            return f"{num:,} of them by {code}, the first: {self._messages[code]}"
        return ""

    @property
    def ttft(self) -> Percentiles:
        """Seconds from a row's submission to its first token."""
        return Percentiles.from_seconds(self._ttft_s)

    def count(self, items: Iterable[BatchItem]) -> None:
        """Count what became of rows."""
        for item in items:
            if item.failure is None:
                self._num_done += 1
            else:
                self.num_failed += 1
                self._codes[item.failure.code] += 1
                self._messages.setdefault(item.failure.code, item.failure.message)
            result = item.result
            if result is not None and result.usage is not None:
                self._prompt_tokens += result.usage.prompt_tokens
                self._completion_tokens += result.usage.completion_tokens
            if result is not None and result.timings is not None and result.timings.ttft_s is not None:
                self._ttft_s.append(result.timings.ttft_s)

    def status(self, state: str, num_under_way: int) -> BatchStatus:
        """The figures now, with the speed of the last seconds; at the end, the speed of the whole run."""
        now = _Mark(monotonic(), self.num_here, self._completion_tokens)
        while len(self._marks) > 1 and self._marks[1].at_s < now.at_s - SPAN_S:
            self._marks.popleft()
        self._marks.append(now)
        since = self._marks[0] if state == "running" else _Mark(self._started_s, 0, 0)
        seconds = max(now.at_s - since.at_s, 1e-3)
        return self._first.model_copy(
            update={
                "state": state,
                "num_done": self._num_done,
                "num_failed": self.num_failed,
                "num_under_way": num_under_way,
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self._completion_tokens,
                "rows_per_s": (now.num_rows - since.num_rows) / seconds,
                "tokens_per_s": (now.num_tokens - since.num_tokens) / seconds,
                "elapsed_s": now.at_s - self._started_s,
            }
        )
