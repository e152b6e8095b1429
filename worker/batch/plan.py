"""What a batch shall do."""

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
    """Input, output, and the options for all rows. `window` None: as many jobs as the workers hold."""

    input_name: str
    output: Path
    options: RowOptions = field(default_factory=RowOptions)
    columns: Columns = field(default_factory=Columns)
    window: int | None = None
    in_order: bool = False
    max_errors: int | None = None

    def __post_init__(self) -> None:
        """Raises BadInput if lines cannot be appended to the output."""
        if self.output.name == STDIN or self.output.suffix == ".gz":
            raise BadInput(
                f"-o {self.output}: must be a plain file, since a run continues from its answers. "
                "Fix: name one"
            )

    @property
    def has_answers(self) -> bool:
        """Whether the output has any content."""
        return any(path.exists() and path.stat().st_size for path in (self.output, self.errors))

    @property
    def errors(self) -> Path:
        """The file for failed rows."""
        return self.output.with_name(f"{self.output.name}.errors.jsonl")

    @property
    def run_file(self) -> Path:
        return self.output.with_name(f"{self.output.name}.run")

    @property
    def result_options(self) -> Mapping[str, Any]:
        """The options that change results: a run can only continue with the same ones."""
        return {**asdict(self.options), **asdict(self.columns), "in_order": self.in_order}
