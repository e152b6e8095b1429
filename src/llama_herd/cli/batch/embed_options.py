"""Options of `herd batch` for rows that are texts, of which each becomes a vector."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from llama_herd.tasks.batch.row_options import EmbedOptions, RowOptions


class CutEnd(StrEnum):
    """Which end of a text is left out."""

    START = "start"
    END = "end"


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


def embed_options(
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


def check_no_tokens(options: "RowOptions", *, has_messages: bool) -> None:
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
