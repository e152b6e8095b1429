"""What jobs without tokens have in common: texts that are computed, each by itself."""

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, ValidationError, ValidationInfo, model_validator

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.given import checked_kind
from llama_herd.tasks.protocol.strict_model import NotEmpty, check_text
from llama_herd.tasks.protocol.terms import Notices, Terms, fields_of
from llama_herd.tasks.protocol.wrong_fields import field_errors
from llama_herd.tasks.settings import Settings

T = TypeVar("T")

#: Most texts of a job. Who has more submits several.
MAX_TEXTS = 256
#: Each id counts as this many bytes of text; an estimate takes this many bytes for one token.
ID_BYTES = 4


#: A text that is computed: not empty, UTF-8 without NUL.
GivenText = Annotated[str, NotEmpty, AfterValidator(check_text)]
#: The number of a text in the name of a field, at the front of a message.
_NUMBERED = re.compile(r"^(texts|text_ids|documents)\.(\d+)")


class TextJob(Notices, Terms):
    """A job with texts, of which each becomes a vector."""

    #: The field that an error of the whole job is about.
    source: ClassVar[str]

    @property
    @abstractmethod
    def num_texts(self) -> int: ...

    @property
    @abstractmethod
    def num_prompt_bytes(self) -> int:
        """Bytes of all that is computed."""

    @model_validator(mode="after")
    def _check_bytes(self, info: ValidationInfo) -> Self:
        limits: Settings | None = info.context
        if limits is not None and self.num_prompt_bytes > limits.max_prompt_bytes:
            fix = "several jobs" if self.num_texts > 1 else "shorten it"
            raise ValueError(
                f"all texts together must be at most {limits.max_prompt_bytes} bytes, "
                f"got {self.num_prompt_bytes}. Fix: {fix}"
            )
        return self

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, and the kind."""
        return {"kind": getattr(self, "kind"), **super().given}  # noqa: B009

    @property
    def estimated_tokens(self) -> int:
        """Tokens of all texts, estimated without a tokenizer."""
        return -(-self.num_prompt_bytes // ID_BYTES)

    @classmethod
    def parse(cls, data: "Terms | Mapping[str, Any] | str | bytes", settings: Settings) -> Self:
        """Check a job from outside against the schema and the limits in `settings`.

        `data` is a job, its fields, or its JSON. Without a tenant the job gets that of `settings`. Raises
        InvalidJob with one entry for each wrong field, and BadInput for what are no settings.
        """
        checked_kind("settings", settings, Settings, "a Settings")
        try:
            return cls.model_validate({"tenant": settings.tenant, **fields_of(data)}, context=settings)
        except ValidationError as error:
            raise InvalidJob(field_errors(error, cls.model_fields, cls.source)) from None


def listed(texts: object, field: str) -> list[Any]:
    """The texts that a caller gives. Raises InvalidJob for one text, whose characters would be the texts."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InvalidJob([FieldError(field, "must be a list of texts. Fix: [text] for one")])
    return list(texts)


def num_bytes_of(text: object) -> int:
    """Bytes of a text, or of the ids of one; what is neither, or is no UTF-8, the job refuses."""
    if isinstance(text, str):
        return len(text.encode(errors="surrogatepass"))
    return ID_BYTES * len(text) if isinstance(text, Sized) else 0


def num_texts_of(source: Mapping[str, Any]) -> int:
    """How many texts a job with these fields has."""
    return sum(len(source.get(name) or ()) for name in ("texts", "text_ids", "documents"))


def counted_from(first: int, message: str) -> str:
    """A message about one text of a job, whose first is the so-many-th of a caller, by its number there."""
    return _NUMBERED.sub(lambda found: f"{found[1]}.{int(found[2]) + first}", message, count=1)


def count_from(first: int, error: InvalidJob) -> InvalidJob:
    """The same of an error of such a job."""
    return InvalidJob([FieldError(counted_from(first, field), message) for field, message in error.fields])


def lots_of(texts: Iterable[T], num_shared: int, max_bytes: int) -> Iterator[list[T]]:
    """Texts in lots, each with as many as a job may have. Of none there is one lot.

    num_shared: bytes that count with each text.
    """
    lot, num_bytes = list[T](), 0
    for text in texts:
        size = num_shared + num_bytes_of(text)
        if lot and (len(lot) == MAX_TEXTS or num_bytes + size > max_bytes):
            yield lot
            lot, num_bytes = [], 0
        lot.append(text)
        num_bytes += size
    yield lot
