"""The plan of a batch: its files and its options."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llama_herd.cli.batch.output_format import OutputFormat
from llama_herd.cli.batch.source import STDIN
from llama_herd.cli.batch.tables import RowColumns
from llama_herd.errors import BadInput
from llama_herd.extras import install_command
from llama_herd.tasks.batch.row_options import RowOptions


@dataclass(frozen=True)
class BatchPlan:
    """Input, output, and the options for all rows. `window` None: as many jobs as the workers hold.

    format: that of the output. has_prompts: answers come with their prompts.
    """

    input_name: str
    output: Path
    options: RowOptions = field(default_factory=RowOptions)
    columns: RowColumns = field(default_factory=RowColumns)
    window: int | None = None
    in_order: bool = False
    max_errors: int | None = None
    format: OutputFormat = OutputFormat.OPENAI
    has_prompts: bool = False

    def __post_init__(self) -> None:
        """Raise BadInput if the output cannot be continued, or a package is missing for its format."""
        if self.output.name == STDIN or self.output.suffix == ".gz":
            raise BadInput(
                f"-o {self.output}: must be a plain file, since a run continues from its answers. "
                "Fix: name one"
            )
        if self.format is OutputFormat.PARQUET and find_spec("pyarrow") is None:
            raise BadInput(f"{self.output} needs pyarrow to be written. Fix: {install_command('batch')}")

    @property
    def has_answers(self) -> bool:
        """Whether a run has written anything here."""
        paths = (self.output, self.answers, self.errors)
        return any(path.exists() and path.stat().st_size for path in paths)

    @property
    def answers(self) -> Path:
        """The file for answers as they come: the output itself, or one beside a table."""
        if self.format is OutputFormat.OPENAI:
            return self.output
        return self.output.with_name(f"{self.output.name}.answers.jsonl")

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
        prompts = {"with_prompts": True} if self.has_prompts else {}
        return {**asdict(self.options), **asdict(self.columns), "in_order": self.in_order, **prompts}
