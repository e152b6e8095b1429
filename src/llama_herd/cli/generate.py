"""`herd generate`: one job, its text on standard output as it comes."""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.job_options import (
    MaxTokens,
    Others,
    SchemaFile,
    System,
    Temperature,
    parse_duration,
    response_format,
    sampling_of,
)
from llama_herd.cli.terminal import checked_text, say, text_or_stdin
from llama_herd.errors import BadInput, HerdError, NotPermitted, UnservedModel
from llama_herd.extras import need_extra

if TYPE_CHECKING:
    from llama_herd.cli.transcript import Transcript
    from llama_herd.tasks.client.client import Client
    from llama_herd.worker.loading.sequence_maker import SequenceMaker

Prompt = Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.")]
AsChat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--text",
        help="Send the prompt as a message, or as a text to go on with; absent: as a message if the model "
        "has a chat template.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="Name of the model; with --local its file or folder, absent: HERD_MODEL."),
]
TopK = Annotated[int | None, typer.Option(help="Keep the k most likely tokens. 0: all.", show_default="0")]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Keep the most likely tokens until their probabilities add up to this.", show_default="1.0"
    ),
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text; absent: derived from the job's id.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")]
Priority = Annotated[int | None, typer.Option(help="-10 to 10; higher goes first.", show_default="0")]
NotBefore = Annotated[
    int | None, typer.Option(help="Do not run it before this time, in milliseconds since 1970.")
]
IdempotencyKey = Annotated[
    str | None, typer.Option(help="A name of your own: the same job sent twice under it runs once.")
]
DeadlineMs = Annotated[int | None, typer.Option(help="Give up after this time, in milliseconds since 1970.")]
Timeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="Give up so long after it is due: 500ms, 90s, 5m, 2h.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
Local = Annotated[bool, typer.Option("--local", help="Run in this process: no queue, no Redis.")]


def generate(
    prompt: Prompt,
    chat: AsChat = None,
    system: System = None,
    model: Model = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    stop: Stop = None,
    schema: SchemaFile = None,
    others: Others = None,
    priority: Priority = None,
    not_before: NotBefore = None,
    idempotency_key: IdempotencyKey = None,
    deadline_ms: DeadlineMs = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    local: Local = False,
) -> None:
    """Ask a model, and stream its text.

    What is not said follows the model: it chats if it has a chat template, with the sampling that its files
    recommend. A line tells what was taken. With --idempotency-key nothing is: the same command is the same
    job.

    Exit code 0 when it ends by itself or at max_tokens, 1 on error, deadline or cancel (Ctrl-C cancels, or
    a reader that leaves), 2 for bad input.
    """
    from llama_herd.cli.transcript import Transcript

    if local and (not_before is not None or idempotency_key is not None):
        raise BadInput("--not-before and --idempotency-key need the queue. Fix: leave out --local")
    text = text_or_stdin(prompt)
    texts = {"--system": system, "--stop": "".join(stop or ()), "--idempotency-key": idempotency_key}
    for name, value in texts.items():
        checked_text(value or "", name)
    turns = [{"role": "user", "content": text}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    sampling = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "stop": stop or None,
    }
    fields = {
        **({"messages": turns} if chat or system is not None else {"prompt": text}),
        "priority": priority,
        "not_before": not_before,
        "deadline_ms": deadline_ms,
        "timeout_s": parse_duration(timeout, "--timeout"),
        "idempotency_key": idempotency_key,
        "response_format": response_format(schema),
        "sampling": sampling_of(sampling, others),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    transcript = Transcript("result" if as_json else "text")
    if local:
        _run_here(given, model, transcript, may_chat=chat is None)
    else:
        _run_in_queue(given, model, transcript, may_chat=chat is None)
    raise typer.Exit(transcript.exit_code)


def _run_in_queue(
    fields: dict[str, Any], model: str | None, transcript: "Transcript", *, may_chat: bool
) -> None:
    """Submit the job, and follow it to its end; the first Ctrl-C cancels it."""
    from llama_herd.cli.environment import read_settings
    from llama_herd.cli.signals import on_interrupt
    from llama_herd.cli.transcript import tell_of_queue
    from llama_herd.tasks.protocol.job import GenerationJob
    from llama_herd.tasks.settings import Settings

    with open_client(model_name=model) as client:
        if "idempotency_key" not in fields:
            settings = read_settings(Settings)
            GenerationJob.parse(fields, settings).check_deadline()  # before anybody is asked
            habits = ModelHabits.told_by(client, settings.default_model)
            fields = habits.suit(fields, may_chat=may_chat) if habits else fields
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnservedModel)  # we say it ourselves, below
            job_id = client.submit(**fields)
        # In a thread, since the signal may interrupt this one while it uses the client.
        cancel = Thread(target=cancel_or_say, args=(client, job_id), daemon=True)
        with on_interrupt(cancel.start):
            tell_of_queue(client, job_id)
            try:
                transcript.follow(client.watch(job_id))
            except OSError:  # of the output: who read it has left, as `head` does, or its disk is full
                if transcript.end is None:
                    cancel_or_say(client, job_id)
                raise
            if cancel.ident is not None:
                cancel.join()  # the job's end may come before the answer, for which the client must stay


def cancel_or_say(client: "Client", job_id: str) -> None:
    """Cancel a job, or say in a line why not."""
    try:
        client.cancel(job_id)
    except HerdError as error:
        say(f"job {job_id} is not cancelled: {error}")


def _run_here(fields: dict[str, Any], model: str | None, transcript: "Transcript", *, may_chat: bool) -> None:
    """Run the job in this process, with a model of its own; the first Ctrl-C cancels it."""
    from llama_herd.cli.environment import read_settings
    from llama_herd.cli.signals import load_torch, on_interrupt
    from llama_herd.worker.loading.hub_model import with_model_here
    from llama_herd.worker.settings import WorkerSettings

    need_extra("worker", "herd generate --local")
    settings = with_model_here(read_settings(WorkerSettings, model=model))
    load_torch()
    from llama_herd.local.local_job import LocalJob

    def suit(maker: "SequenceMaker") -> dict[str, Any]:
        habits = ModelHabits(settings.served_model, maker.chat is not None, maker.sampling)
        return habits.suit(fields, may_chat=may_chat)

    with _logs_beside_the_answer():
        job = LocalJob.load(fields, settings, suit)
    with job, on_interrupt(job.cancel):
        transcript.follow(job.events())


class ModelHabits(NamedTuple):
    """How a model is meant to be used, and what a job takes of it where nobody says otherwise.

    chats: whether it has a chat template. sampling: what its files recommend, by the fields of a job.
    """

    name: str
    chats: bool
    sampling: Mapping[str, Any]

    @classmethod
    def told_by(cls, client: "Client", model: str) -> "ModelHabits | None":
        """Those that a worker of this model reports; None if none is up, or if this user may not ask."""
        try:
            workers = client.workers()
        except NotPermitted:
            return None
        own = next((one for one in workers if one.model == model), None)
        return None if own is None else cls(model, own.chats == "yes", own.own_sampling)

    def suit(self, fields: Mapping[str, Any], *, may_chat: bool) -> dict[str, Any]:
        """Return a job's fields as this model is meant to be asked, and say in a line what was taken.

        may_chat: a prompt may become a message.
        """
        given = fields.get("sampling", {})
        own = {name: value for name, value in self.sampling.items() if name not in given}
        taken = {**fields, "sampling": own | given}
        is_chat = may_chat and self.chats and "prompt" in taken
        if is_chat:
            taken["messages"] = [{"role": "user", "content": taken.pop("prompt")}]
        told = ["as a chat (--text: as a text to go on with)"] if is_chat else []
        told += ["its own " + ", ".join(f"{name} {value:g}" for name, value in own.items())] if own else []
        if told:
            say(f"{self.name}: {'; '.join(told)}")
        return taken


@contextmanager
def _logs_beside_the_answer() -> Iterator[None]:
    """Log to standard error meanwhile: standard output has the answer alone."""
    import structlog

    before = structlog.get_config()
    structlog.reset_defaults()  # what a worker has set up in this process is for loggers with names
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        yield
    finally:
        structlog.configure(**before)
