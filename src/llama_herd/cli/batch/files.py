"""The plan of a run, and its files: its input, its answers, and its errors."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from llama_herd.cli.batch.answer_table import write_answer_table
from llama_herd.cli.batch.input_file import STDIN, InputOptions, TableSource, open_source
from llama_herd.cli.batch.output_format import OutputFormat
from llama_herd.cli.batch.parquet_table import ParquetTable, need_pyarrow
from llama_herd.cli.batch.schema_columns import schema_columns
from llama_herd.cli.batch.sources import Source
from llama_herd.cli.batch.table_layout import TableLayout, own_columns
from llama_herd.cli.batch.vector_file import VectorFile
from llama_herd.counted import counted
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.answers import answered_rows, error_line, output_line, vector_line
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.client.batch.batch_progress import DoneRows
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchRow
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.storage.line_file import LineFile


@dataclass(frozen=True)
class BatchPlan:
    """Input, output, and the options for all rows. `window` None: as many jobs as the workers hold.

    format: that of the output. has_prompts: answers come with their prompts. dropped: columns of the input
    that a table of answers does not take over. default_model: that of rows that name none.
    """

    input_name: str
    output: Path
    options: RowOptions = field(default_factory=RowOptions)
    reading: InputOptions = field(default_factory=InputOptions)
    window: int | None = None
    in_order: bool = False
    max_errors: int | None = None
    format: OutputFormat = OutputFormat.OPENAI
    has_prompts: bool = False
    dropped: Sequence[str] = ()
    default_model: str | None = None

    def __post_init__(self) -> None:
        """Raise BadInput if the output cannot be continued, or a package is missing for its format."""
        if self.output.name == STDIN or self.output.suffix == ".gz":
            raise BadInput(
                f"-o {self.output}: must be a plain file, since a run continues from its answers. "
                "Fix: name one"
            )
        if os.path.exists(self.output) and not self.output.is_file():  # a table would take its place
            raise BadInput(f"-o {self.output} is not a plain file. Fix: choose another -o")
        if self.format is OutputFormat.PARQUET:
            need_pyarrow(str(self.output), "written")
        if self.format is OutputFormat.NPY and self.options.embed is None:
            raise BadInput(f"-o {self.output}: an .npy file is for vectors. Fix: --embed, or another suffix")

    @property
    def answers(self) -> Path:
        """The file for answers as they come: the output itself, or one beside a table."""
        if self.format is OutputFormat.OPENAI:
            return self.output
        return self.output.with_name(f"{self.output.name}.answers.jsonl")

    @property
    def vectors(self) -> Path | None:
        """The file for vectors as they come, if they do not stand in the lines of the answers."""
        if self.options.embed is None or self.format is OutputFormat.OPENAI:
            return None
        is_output = self.format is OutputFormat.NPY
        return self.output if is_output else self.output.with_name(f"{self.output.name}.vectors.npy")

    @property
    def errors(self) -> Path:
        """The file for failed rows."""
        return self.output.with_name(f"{self.output.name}.errors.jsonl")

    @property
    def run_file(self) -> Path:
        return self.output.with_name(f"{self.output.name}.run")


@dataclass(frozen=True)
class RunFile:
    """A run's id, what it reads, and the options that change its results.

    input_sha256: of its content; None for standard input. default_model: None where all rows have another.
    """

    run_id: str
    input_name: str
    options: Mapping[str, Any]
    input_sha256: str | None
    default_model: str | None

    @classmethod
    def open(cls, plan: BatchPlan) -> Self:
        """The run that the plan's output belongs to, or a new one if the output has no answers.

        Raises BadInput if it has answers of another run, or of an unknown one.
        """
        is_stdin = plan.input_name == STDIN
        prompts = {"with_prompts": True} if plan.has_prompts else {}
        own = {"in_order": plan.in_order, "format": plan.format, **prompts}
        asked = cls(
            run_id=secrets.token_hex(6),
            input_name=STDIN if is_stdin else Path(plan.input_name).name,
            options={**asdict(plan.options), **asdict(plan.reading), **own},
            input_sha256=None if is_stdin else _sha256(plan.input_name),
            default_model=plan.default_model if plan.options.model is None else None,
        )
        try:
            known = cls._read(plan)
            known._check(asked, plan.output)
        except BadInput:
            if any(
                os.path.exists(path) and os.path.getsize(path)
                for path in (plan.output, plan.answers, plan.errors)
            ):
                raise
            asked._write(plan.run_file)
            return asked
        return known

    @classmethod
    def _read(cls, plan: BatchPlan) -> Self:
        try:
            return cls(**json.loads(plan.run_file.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            raise BadInput(
                f"{plan.output} has answers, but {plan.run_file}, which is needed to continue, is missing or "
                "damaged. Fix: choose another -o, or move the answers away"
            ) from None

    def _check(self, asked: "RunFile", output: Path) -> None:
        """Raise BadInput if `asked` differs from this run in more than its id."""
        same_input = "Fix: give the same input, or choose another -o"
        if self.input_name != asked.input_name:
            before = f"{output} was begun with another input: {self.input_name}"
            raise BadInput(f"{before}, and now it is {asked.input_name}. {same_input}")
        if self.input_sha256 != asked.input_sha256:
            raise BadInput(f"{output} was begun with another content of {self.input_name}. {same_input}")
        model, now = self.default_model, asked.default_model
        if model and now and model != now:
            raise BadInput(
                f"{output} was begun with {model} for rows that name no model, and now it is {now}. "
                "Fix: set HERD_MODEL_NAME as before, or choose another -o"
            )
        own = {"format": asked.options["format"], **self.options}  # earlier versions did not note it
        names = own.keys() | asked.options.keys()
        changed = sorted(name for name in names if own.get(name) != asked.options.get(name))
        if changed:
            raise BadInput(
                f"{output} was begun with other options: {', '.join(changed)}. "
                "Fix: give the same ones, or choose another -o"
            )

    def _write(self, path: Path) -> None:
        """Write the file whole or not at all, before the first answer."""
        draft = path.with_name(f"{path.name}.new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(asdict(self), file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise BadInput(f"{path} cannot be written: {error.strerror}") from None


def _sha256(name: str) -> str:
    """Of a file's content: rows are known by their lines, and rows in another order have the same size."""
    try:
        with open(name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}") from None


def table_layout(plan: BatchPlan, source: Source) -> TableLayout | None:
    """The columns of the output if it is to be a table. Raises BadInput if input and output do not fit."""
    is_table, table = plan.format not in (OutputFormat.OPENAI, OutputFormat.NPY), None
    kept: Sequence[str] = ()
    if is_table and isinstance(source, TableSource):
        table, kept = source.table, source.kept(plan.dropped)
        if isinstance(table, ParquetTable) and plan.format is not OutputFormat.PARQUET:
            table.check_plain(kept, str(plan.output), "leave it out by --drop {}, or write .parquet")
    elif plan.dropped:
        raise BadInput("--drop is for columns that a table of answers takes over from a table of prompts")
    fields = schema_columns(plan.options.response_format)
    own = own_columns(embeds=plan.options.embed is not None, has_prompts=plan.has_prompts)
    return TableLayout.make(table, kept, fields, own) if is_table else None


class BatchFiles:
    """Input, output and errors, open within the block.

    The answers themselves show which rows are done, so no other record can disagree with them. Raises
    BadInput when a file cannot be used. num_rows: those of the input, None if it can be read only once.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.source = open_source(plan.input_name, plan.reading)
        is_there = os.path.exists(plan.output)  # `Path.exists` raises, as for a name that is too long
        if plan.input_name != STDIN and is_there and plan.output.samefile(plan.input_name):
            raise BadInput(f"-o {plan.output} is the input itself. Fix: choose another -o")
        self.layout = table_layout(plan, self.source)
        self.num_rows = self.source.num_rows()  # which finds what cannot be read, before a file is made
        self._answers = LineFile(plan.answers)
        self._errors = LineFile(plan.errors)
        self._vectors = None if plan.vectors is None else VectorFile(plan.vectors)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._answers)
            self.run = RunFile.open(self.plan)
            stack.enter_context(self._errors)
            if self._vectors is not None:
                stack.enter_context(self._vectors)
            # Only now is it certain that these files belong to this run.
            self._answers.repair()
            self._errors.repair()
            self.done = DoneRows()
            for file in (self._answers, self._errors):
                for line, _ in answered_rows(file.path, self.run.run_id):
                    self.done.add(line, has_failed=file is self._errors)
            if self._vectors is not None and not self.done.num_answered:
                self._vectors.width = 0  # what another run has left there says nothing of this one
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def renamed(self) -> Sequence[str]:
        """What a person should know of the output's names."""
        return () if self.layout is None else self.layout.renamed

    def rows(self, settings: Settings) -> Iterator[BatchRow | None]:
        """The rows without an answer; None while the next row has not arrived."""
        reader = RequestReader(settings, self.plan.options, self.run.run_id)
        return reader.rows_left(self.source.rows(), self.done)

    def write(self, items: Sequence[BatchItem]) -> None:
        """Write answers to disk. Raises CannotWrite."""
        run_id, prompts = self.run.run_id, self.plan.has_prompts
        done = [one for one in items if one.failure is None]
        if self._vectors is not None:
            self._vectors.write(done)
        line = output_line if self._vectors is None else vector_line
        self._answers.append([line(run_id, one, with_prompt=prompts) for one in done])
        self._errors.append([error_line(run_id, one) for one in items if one.failure is not None])

    def write_table(self, *, is_whole: bool = True) -> str:
        """Make the table of all answers, if the output is to be one, and say so. Raises CannotWrite.

        is_whole: whether all rows have ended.
        """
        path, format = self.plan.output, self.plan.format
        if self._vectors is not None and format is OutputFormat.NPY:
            return self._finish_vectors(self._vectors, is_whole=is_whole)
        if self.layout is None:
            return ""
        files = (self._answers, self._errors)
        num_rows = write_answer_table(files, self.run.run_id, path, format, self.layout, self._vectors)
        return f"{path}: {counted(num_rows, 'row')}"

    def _finish_vectors(self, vectors: VectorFile, *, is_whole: bool) -> str:
        if not is_whole:
            return f"{vectors.path} can be read once all rows have ended. Run the same command again"
        if not vectors.width:
            return f"{vectors.path}: no row has a vector"
        run_id = self.run.run_id
        failed = {line for line, _ in answered_rows(self._errors.path, run_id)}
        lines = sorted({*failed, *(line for line, _ in answered_rows(self._answers.path, run_id))})
        vectors.finish(len(lines), (position for position, line in enumerate(lines) if line in failed))
        missing = f", {len(failed):,} of them NaN" if failed else ""
        return (
            f"{vectors.path}: {counted(len(lines), 'vector')} of {counted(vectors.width, 'number')}{missing}"
        )
