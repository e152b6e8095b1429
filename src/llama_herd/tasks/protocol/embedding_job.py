"""A job without tokens: texts whose vectors are wanted, each by itself."""

from collections.abc import Iterator, Sequence, Sized
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from llama_herd.tasks.protocol.strict_model import MaxItems, NotEmpty, StrictModel, check_length
from llama_herd.tasks.protocol.text_job import ID_BYTES, MAX_TEXTS, GivenText, TextJob, listed, lots_of
from llama_herd.tasks.settings import Settings

TEXT_SOURCES = ("texts", "text_ids")
_SOURCE_MESSAGE = "exactly one of texts and text_ids is required"


_Ids = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**31)], ...],
    Field(strict=False, fail_fast=True),
    NotEmpty,
]


class Texts(StrictModel):
    """What is to become vectors, and which vectors."""

    v: Literal[1] = Field(default=1, description="Version of the protocol.")
    kind: Literal["embed"] = Field(default="embed", description="The kind of the job: vectors of texts.")
    texts: Annotated[tuple[GivenText, ...], MaxItems(MAX_TEXTS), NotEmpty] | None = Field(
        default=None,
        description="The texts, UTF-8 without NUL. Each becomes a vector, whatever the others are.",
    )
    text_ids: Annotated[tuple[_Ids, ...], MaxItems(MAX_TEXTS), NotEmpty] | None = Field(
        default=None, description="The texts as token ids of the model. Nothing is added to them."
    )
    prompt_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of one of the model's prompts, like `query`, that each text is put behind. Absent: "
        "the model's default, if its files name one.",
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="So many of a vector's first numbers are kept, for models that allow it. Absent: all.",
    )
    truncate: Literal["start", "end"] | None = Field(
        default=None,
        description="Where a text is cut that has more tokens than the model takes. Absent: the job is "
        "refused.",
    )

    @field_validator("text_ids", mode="before")
    @classmethod
    def _check_num_ids(cls, value: Any, info: ValidationInfo) -> Any:
        limits: Settings | None = info.context
        if limits is not None and isinstance(value, list | tuple) and len(value) <= MAX_TEXTS:
            for ids in value:
                check_length(ids, limits.max_prompt_bytes // ID_BYTES)
        return value


# The fields of its JSON stand in the order of these classes, from the right.
class EmbeddingJob(TextJob, Texts):
    """Texts to become vectors: exactly one of `texts` and `text_ids`. Times are unix milliseconds."""

    source: ClassVar = "texts"

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if sum(source is not None for source in (self.texts, self.text_ids)) != 1:
            raise ValueError(_SOURCE_MESSAGE)
        if self.prompt_name is not None and self.texts is None:
            raise ValueError("prompt_name needs texts: nothing is added to ids")
        return self

    @property
    def num_texts(self) -> int:
        return len(self.texts or self.text_ids or ())

    @property
    def num_prompt_bytes(self) -> int:
        """Bytes of all texts."""
        ids = sum(len(ids) for ids in self.text_ids or ())
        return sum(len(text.encode()) for text in self.texts or ()) + ID_BYTES * ids


#: A text, or its token ids.
Text = str | Sequence[int]


def sources_of(texts: Sequence[Text], max_bytes: int) -> Iterator[dict[str, Any]]:
    """The kind and the source of each job that these texts make, with as many as a job may have.

    Raises InvalidJob if they are no list.
    """
    given = listed(texts, "texts")
    is_text = any(not isinstance(one, Sized) or isinstance(one, str) for one in given)
    source = "texts" if is_text or not given else "text_ids"
    for lot in lots_of(given, 0, max_bytes):
        yield {"kind": "embed", source: lot}
