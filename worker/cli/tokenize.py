"""`herd tokenize`: the token ids that a model sees for a text."""

import json
from pathlib import Path
from typing import Annotated

import typer


def tokenize(
    text: Annotated[str, typer.Argument(help="Text of a prompt; - reads it from standard input.")],
    model: Annotated[
        Path | None, typer.Option(help="GGUF file or Hugging Face folder; absent: HERD_MODEL.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the tokens of a prompt: ids and pieces.

    BOS comes first if the model's file says so. Bytes that do not form a whole character are shown as \\xNN.
    """
    from llama_herd.worker.local.environment import override, read
    from llama_herd.worker.local.requirements import load_torch, need_worker_extra
    from llama_herd.worker.local.terminal import text_or_stdin
    from llama_herd.worker.settings import WorkerSettings

    need_worker_extra("herd tokenize")
    override(model=model)
    settings = read(WorkerSettings)
    prompt = text_or_stdin(text)
    load_torch()
    from llama_herd.model.files.model_file import open_model

    with open_model(settings.model) as file:
        tokenizer = file.read_tokenizer()
        names = {token_id: name for name, token_id in file.read_control_tokens(tokenizer).ids.items()}
    ids = tokenizer.encode(prompt)
    pieces = [names.get(i) or tokenizer.pieces[i].decode(errors="backslashreplace") for i in ids]
    if as_json:
        print(json.dumps({"ids": ids, "pieces": pieces}))
    else:
        for token_id, piece in zip(ids, pieces, strict=True):
            print(f"{token_id:>7}  '{_visible(piece)}'")


def _visible(piece: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in piece)
