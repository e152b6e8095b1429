"""Options that several commands have."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_herd.errors import BadInput

#: The seconds of each unit of time.
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

ModelFile = Annotated[
    Path | None,
    typer.Option(
        help="GGUF file, Hugging Face folder, or hf:OWNER/NAME; absent: HERD_MODEL, else the bundled one."
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(help="own, or the kind of server at --engine-url: vllm or llama-server."),
]
EngineUrl = Annotated[
    str | None, typer.Option(help="Address of the server that computes, such as http://127.0.0.1:8000.")
]
# Absent, a field is not sent; the defaults shown are the job's own, whose import would take time here.
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to generate.", show_default="256")]
Temperature = Annotated[
    float | None, typer.Option(help="0 always takes the most likely token.", show_default="1.0")
]
Others = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other sampling field, its value as JSON; may be repeated.",
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help="JSON schema of the output: nothing else is drawn."),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Send a prompt as a message, through the model's chat template.")
]
System = Annotated[str | None, typer.Option(help="System message before it; implies --chat.")]
EndsAfter = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="It ends by itself after this time: 90s, 5m, 2h."),
]


def sampling_of(given: Mapping[str, Any], others: Iterable[str] | None) -> dict[str, Any]:
    """The fields of sampling that were given, by options of their own or by --set. Raises BadInput."""
    named = {name: value for name, value in given.items() if value is not None}
    return named | dict(map(_named_value, others or ()))


def response_format(schema: Path | None) -> dict[str, Any] | None:
    """The `response_format` for the schema in a file. Raises BadInput if it cannot be read."""
    if schema is None:
        return None
    try:
        read = json.loads(schema.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--schema {schema}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"--schema {schema}: is no JSON. Fix: give a file with one JSON schema") from None
    return {"type": "json_schema", "json_schema": {"schema": read}}


def _named_value(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        raise BadInput(f"--set {name}: must be followed by = and a value in JSON, as in min_p=0.1") from None


def parse_duration(text: str | None, name: str) -> float | None:
    """The seconds of a duration such as 90s, 5m, 2h or 1d; a number alone means seconds; None stays.

    Raises BadInput, which names the option `name`.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|m|h|d|)", text)
    if match is None or not float(match[1]):
        raise BadInput(f"{name} {text}: must be a time such as 500ms, 90s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
