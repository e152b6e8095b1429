"""`herd tokenize`: the ids that a model sees in place of a text or a chat."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.terminal import MAX_STDIN_BYTES, harmless, text_or_stdin
from llama_herd.errors import BadInput
from llama_herd.extras import need_extra

if TYPE_CHECKING:
    from llama_herd.model.text.control_tokens import ControlTokens
    from llama_herd.model.text.tokenizer import Tokenizer
    from llama_herd.tasks.protocol.job import GenerationJob
    from llama_herd.worker.settings import WorkerSettings


Text = Annotated[str | None, typer.Argument(help="Text of a prompt; - reads it from standard input.")]
Chat = Annotated[
    Path | None,
    typer.Option(
        help="JSON file with a list of messages, or with a job that has messages; - is standard input.",
        metavar="FILE",
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(help="GGUF file, also only a vocabulary, or Hugging Face folder; absent: HERD_MODEL."),
]


def tokenize(
    text: Text = None,
    chat: Chat = None,
    model: Model = None,
    no_bos: Annotated[bool, typer.Option("--no-bos", help="The text alone: no BOS, no EOS.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the tokens of a prompt or chat, ids and pieces.

    Of a chat it also shows the text that the model's template makes. BOS comes first and EOS last if the
    model's file says so; in a chat the template decides. Bytes that do not form a whole character are shown
    as \\xNN.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.worker.loading.hub_model import with_model_here
    from llama_herd.worker.settings import WorkerSettings

    need_extra("worker", "herd tokenize")
    if (text is None) == (chat is None):
        raise BadInput("herd tokenize takes a text or --chat FILE")
    settings = with_model_here(read_settings(WorkerSettings, model=model))
    prompt = text_or_stdin(text or "")
    job = None if chat is None else _chat_job(chat, settings)
    from llama_herd.model.files.open_model import read_tokens

    tokenizer, control_tokens = read_tokens(settings.model)
    for complaint in tokenizer.complaints:
        print(harmless(complaint), file=sys.stderr)
    if job is None:
        ids = tokenizer.encode(prompt, add_bos=False if no_bos else None)
    else:
        ids = _chat_ids(job, tokenizer, control_tokens)
    _show(ids, tokenizer, control_tokens, is_chat=job is not None, as_json=as_json)


def _show(
    ids: list[int], tokenizer: "Tokenizer", control_tokens: "ControlTokens", *, is_chat: bool, as_json: bool
) -> None:
    """Print the ids with their pieces; of a chat first its whole text."""
    names = {token_id: name for name, token_id in control_tokens.ids.items()}
    pieces = [names[i].encode() if i in names else tokenizer.pieces[i] for i in ids]
    shown = [piece.decode(errors="backslashreplace") for piece in pieces]
    whole = b"".join(pieces).decode(errors="backslashreplace")
    if as_json:
        print(json.dumps({"ids": ids, "pieces": shown} | ({"text": whole} if is_chat else {})))
        return
    if is_chat:
        print(harmless(whole) + "\n")
    for token_id, piece in zip(ids, shown, strict=True):
        visible = "".join(char if char.isprintable() else repr(char)[1:-1] for char in piece)
        print(f"{token_id:>7d}  '{harmless(visible)}'")


def _chat_job(path: Path, settings: "WorkerSettings") -> "GenerationJob":
    """The job of a chat's file, or of standard input for -. Raises BadInput."""
    from llama_herd.tasks.protocol.job import GenerationJob

    content: str | bytes
    if str(path) == "-":
        content = text_or_stdin("-")
    else:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_STDIN_BYTES + 1)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_STDIN_BYTES:
        raise BadInput(f"{path} is longer than {MAX_STDIN_BYTES:,} bytes. Fix: a shorter chat")
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise BadInput(f"{path} is not JSON") from None
    job = GenerationJob.parse({"messages": fields} if isinstance(fields, list) else fields, settings)
    if job.messages is None:
        raise BadInput(f"{path} has no messages")
    return job


def _chat_ids(job: "GenerationJob", tokenizer: "Tokenizer", control_tokens: "ControlTokens") -> list[int]:
    from llama_herd.model.text.chat import ChatTemplates
    from llama_herd.worker.loading.chats import chat_of

    if not tokenizer.chat_templates:
        raise BadInput("this model has no chat template. Fix: take a model file with one")
    with ChatTemplates(tokenizer.chat_templates, tokenizer, control_tokens) as templates:
        return templates.encode(chat_of(job))
