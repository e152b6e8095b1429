"""`herd batch`: a file of prompts in, a file of answers out; the same command again continues it."""

import shlex
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.batch.output_format import OutputFormat
from llama_herd.cli.connection import open_client
from llama_herd.cli.job_options import (
    Chat,
    MaxTokens,
    Others,
    SchemaFile,
    System,
    Temperature,
    response_format,
    sampling_of,
)
from llama_herd.cli.terminal import show
from llama_herd.errors import BadInput
from llama_herd.extras import need_extra

if TYPE_CHECKING:
    from llama_herd.cli.batch.files import BatchPlan
    from llama_herd.local.worker_process import WorkerProcess
    from llama_herd.tasks.batch.row_options import EmbedOptions, RowOptions


class CutEnd(StrEnum):
    """Which end of a text is left out."""

    START = "start"
    END = "end"


Input = Annotated[
    str | None,
    typer.Argument(
        help=".jsonl, .json, .txt (a prompt a line), .csv, .tsv, .parquet; - is standard input, JSON lines.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help=".jsonl, .csv, .tsv or .parquet, for vectors also .npy; failed rows go into a file beside it.",
    ),
]
Format = Annotated[
    OutputFormat | None,
    typer.Option(
        help="OpenAI's lines, or a flat row for each output; absent: by the output's suffix.",
        show_default=False,
    ),
]
WithPrompts = Annotated[bool, typer.Option("--with-prompts", help="Each answer comes with its prompt.")]
Model = Annotated[
    str | None,
    typer.Option(help="Model for all rows; with --local its file or folder, absent: HERD_MODEL."),
]
Local = Annotated[bool, typer.Option("--local", help="Start a Redis and a worker for this run.")]
InOrder = Annotated[bool, typer.Option("--in-order", help="Answers in the order of the rows.")]
MaxErrors = Annotated[int | None, typer.Option(min=0, help="Stop when more rows than this have failed.")]
Window = Annotated[
    int | None, typer.Option(min=1, help="Most jobs under way; absent: as many as the workers hold.")
]
Priority = Annotated[int, typer.Option(help="-10 to 10; higher goes first.")]
Seed = Annotated[
    int | None, typer.Option(help="Same seed, same text for each row; absent: another seed in each run.")
]
Prompt = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Prompt of each row, with columns of a table: 'Classify {title}: {text}'.",
    ),
]
PromptColumn = Annotated[
    str | None, typer.Option(help="Column of the prompt, or text, in a table.", show_default="prompt, text")
]
Messages = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON file of a chat's messages, with columns in their texts."),
]
IdColumn = Annotated[
    str | None,
    typer.Option(help="Column of the row's name in a table; absent: its line number.", show_default=False),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Column that a table of answers leaves out; may be repeated."),
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="Encoding of the input's text.", show_default="utf-8")
]
Separator = Annotated[
    str | None,
    typer.Option(help="What separates the cells of a .csv or .tsv; tab is a word.", show_default="by suffix"),
]
Embed = Annotated[bool, typer.Option("--embed", help="Rows are texts, and each becomes a vector.")]
Dimensions = Annotated[
    int | None, typer.Option(help="So many of a vector's first numbers.", show_default="all")
]
PromptName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Prompt of the model that texts are put behind.", show_default="the model's"
    ),
]
Truncate = Annotated[
    CutEnd | None,
    typer.Option(help="Where a text is cut that is too long; absent: it fails.", show_default=False),
]
TextsPerJob = Annotated[
    int | None, typer.Option(min=1, max=256, help="Most short texts that share a job.", show_default="64")
]
Watch = Annotated[
    str | None, typer.Option(metavar="RUN", help="Show a run that goes on elsewhere, instead of running one.")
]
Cancel = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="End a run that goes on elsewhere; the same command continues it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print events as JSON, one a line.")]


def batch(
    input: Input = None,
    output: Output = None,
    model: Model = None,
    local: Local = False,
    in_order: InOrder = False,
    max_errors: MaxErrors = None,
    window: Window = None,
    priority: Priority = -10,
    seed: Seed = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    schema: SchemaFile = None,
    others: Others = None,
    chat: Chat = False,
    system: System = None,
    prompt: Prompt = None,
    prompt_column: PromptColumn = None,
    messages: Messages = None,
    embed: Embed = False,
    dimensions: Dimensions = None,
    prompt_name: PromptName = None,
    truncate: Truncate = None,
    texts_per_job: TextsPerJob = None,
    id_column: IdColumn = None,
    drop: Drop = None,
    encoding: Encoding = None,
    separator: Separator = None,
    format: Format = None,
    with_prompts: WithPrompts = False,
    watch: Watch = None,
    cancel: Cancel = None,
    as_json: AsJson = False,
) -> None:
    """Run every row of a file, and continue where a run stopped.

    Reads OpenAI's batch lines, objects with a prompt or messages, plain text, and tables; with --embed what
    has a text. Options of a job are for rows that do not set its field; --model is for all. Exit code 0 when
    all rows are done, 1 when some failed, 2 for bad input, 130 or 143 when it was interrupted.
    """
    if watch is not None or cancel is not None:
        return _look_elsewhere(watch, cancel, as_json=as_json)
    from llama_herd.cli.batch.files import BatchPlan
    from llama_herd.cli.batch.input_file import InputOptions
    from llama_herd.cli.batch.row_template import read_messages
    from llama_herd.cli.batch.sources import TEXT
    from llama_herd.tasks.batch.row_options import RowOptions

    if input is None or output is None:
        raise BadInput(
            "herd batch needs a file to read and a file to write. Fix: herd batch in.jsonl -o out.jsonl"
        )
    options = RowOptions(
        model=None if local else model,
        system=system,
        is_chat=chat or system is not None,
        priority=priority,
        seed=seed,
        response_format=response_format(schema),
        sampling=sampling_of({"max_tokens": max_tokens, "temperature": temperature}, others),
        embed=_embed_options(dimensions, prompt_name, truncate, texts_per_job, embeds=embed),
    )
    if embed:
        _check_no_tokens(options, has_messages=messages is not None)
    if messages is not None and options.is_chat:
        raise BadInput("--messages is a chat already. Fix: leave out --chat, and put --system into its file")
    plan = BatchPlan(
        input,
        output,
        options,
        InputOptions(
            prompt=prompt,
            prompt_column=prompt_column,
            messages=None if messages is None else read_messages(messages),
            id_column=id_column,
            encoding=encoding,
            separator="\t" if separator == "tab" else separator,
            text_field=TEXT if embed else None,
        ),
        window=window,
        in_order=in_order,
        max_errors=max_errors,
        format=OutputFormat.from_suffix(output) if format is None else format,
        has_prompts=with_prompts,
        dropped=tuple(drop or ()),
    )
    raise typer.Exit(_run(plan, model, local=local, as_json=as_json))


def _embed_options(
    dimensions: int | None,
    prompt_name: str | None,
    truncate: CutEnd | None,
    texts_per_job: int | None,
    *,
    embeds: bool,
) -> "EmbedOptions | None":
    """What is asked of texts; None: rows are none. Raises BadInput for options that are for texts only."""
    from llama_herd.tasks.batch.row_options import TEXTS_PER_JOB, EmbedOptions

    if embeds:
        cut = None if truncate is None else truncate.value
        return EmbedOptions(dimensions, prompt_name, cut, texts_per_job or TEXTS_PER_JOB)
    given = (dimensions, prompt_name, truncate, texts_per_job)
    names = ("--dimensions", "--prompt-name", "--truncate", "--texts-per-job")
    wrong = next((name for name, value in zip(names, given, strict=True) if value is not None), None)
    if wrong is not None:
        raise BadInput(f"{wrong} is for texts that become vectors. Fix: --embed")
    return None


def _check_no_tokens(options: "RowOptions", *, has_messages: bool) -> None:
    """Raise BadInput for options of rows that are answered by text."""
    given = {
        "--messages": has_messages,
        "--chat or --system": options.is_chat,
        "--schema": options.response_format is not None,
        "--seed": options.seed is not None,
        "--max-tokens, --temperature or --set": bool(options.sampling),
    }
    wrong = next((name for name, is_given in given.items() if is_given), None)
    if wrong is not None:
        raise BadInput(f"{wrong}: a row that becomes a vector has no output of tokens. Fix: leave it out")


def _run(plan: "BatchPlan", model: str | None, *, local: bool, as_json: bool) -> int:
    """Run a batch on the workers that are up, or on one that is started for it; return the exit code."""
    from llama_herd.cli.batch.files import BatchFiles
    from llama_herd.cli.batch.runner import BatchRunner
    from llama_herd.cli.batch.screen import open_screen
    from llama_herd.cli.environment import read_settings
    from llama_herd.cli.signals import left_by_signals
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.settings import Settings

    with ExitStack() as stack:
        own = None
        if local:
            herd = _own_herd(model)  # its model may have to be fetched
            let_signals_go = stack.enter_context(left_by_signals())
            own = stack.enter_context(herd)
            let_signals_go()
        settings = read_settings(Settings) if own is None else own.settings
        if own is not None:
            plan = replace(plan, options=replace(plan.options, model=own.settings.served_model))
        client = stack.enter_context(Client(settings=settings))
        client.workers()  # raises where there is no Redis, before a file is made
        plan.options.check(settings)
        plan.reading.check(settings)
        plan = replace(plan, default_model=settings.default_model)
        files = stack.enter_context(BatchFiles(plan))
        rows = files.rows(settings)
        batch = client.batch(rows, run_id=files.run.run_id, window=plan.window, in_order=plan.in_order)
        command = shlex.join(["herd", *sys.argv[1:]])
        screen = open_screen(as_json=as_json)
        runner = BatchRunner(
            files, batch, client, screen, command=command, max_errors=plan.max_errors, own=own
        )
        return runner.run()


def _own_herd(model: str | None) -> "AbstractContextManager[WorkerProcess]":
    """A worker of the model with a Redis, for this run."""
    from llama_herd.cli.environment import read_settings
    from llama_herd.local.worker_process import own_herd
    from llama_herd.worker.loading.hub_model import with_model_here
    from llama_herd.worker.settings import WorkerSettings

    need_extra("worker", "herd batch --local")
    return own_herd(with_model_here(read_settings(WorkerSettings, model=model)))


def _look_elsewhere(watched: str | None, cancelled: str | None, *, as_json: bool) -> None:
    """Show the run that is watched, or else end the other one; neither runs here."""
    from llama_herd.cli.batch.runner import end_batch, watch_batch
    from llama_herd.cli.batch.screen import open_screen

    with open_client() as client:
        if watched is not None:
            status = watch_batch(client, watched, open_screen(as_json=as_json))
            raise typer.Exit(int(status.state != "done" or status.num_failed > 0))
        if cancelled is not None:
            show(end_batch(client, cancelled))
