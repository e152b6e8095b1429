"""The option --schema FILE: outputs are JSON of this schema."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_herd.errors import BadInput

SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help="JSON schema of the output: nothing else is drawn."),
]


def response_format(path: Path | None) -> dict[str, Any] | None:
    """What a job asks for by the schema in a file. Raises BadInput if it cannot be read."""
    if path is None:
        return None
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--schema {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"--schema {path}: is no JSON. Fix: give a file with one JSON schema") from None
    return {"type": "json_schema", "json_schema": {"schema": schema}}
