"""What is asked of a batch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llama_herd.errors import BadInput
from llama_herd.worker.batch.row_options import RowOptions
from llama_herd.worker.batch.source import STDIN
from llama_herd.worker.batch.tables import Columns


@dataclass(frozen=True)
class Plan:
    """A file in, a file out, and what holds for all rows; `window`: None follows the workers."""

    input_name: str
    output: Path
    options: RowOptions = field(default_factory=RowOptions)
    columns: Columns = field(default_factory=Columns)
    window: int | None = None
    in_order: bool = False
    max_errors: int | None = None

    def __post_init__(self) -> None:
        """Raises BadInput for an output to which lines cannot be appended."""
        if self.output.name == STDIN or self.output.suffix == ".gz":
            raise BadInput(
                f"-o {self.output}: answers are appended to a plain file, by which a run can go on. "
                "Fix: name one"
            )

    @property
    def has_answers(self) -> bool:
        """Whether anything stands where answers go."""
        return any(path.exists() and path.stat().st_size for path in (self.output, self.errors))

    @property
    def errors(self) -> Path:
        """Where rows go that failed."""
        return self.output.with_name(f"{self.output.name}.errors.jsonl")

    @property
    def run_file(self) -> Path:
        return self.output.with_name(f"{self.output.name}.run")

    @property
    def result_options(self) -> Mapping[str, Any]:
        """What changes results: a run that goes on must have the same."""
        return {**asdict(self.options), **asdict(self.columns), "in_order": self.in_order}
