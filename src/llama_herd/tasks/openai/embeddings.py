"""OpenAI's requests for vectors as our jobs, and results of these as its answer.

Source: OpenAI's API reference for embeddings.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import Field

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.openai.answer_schema import AnswerModel
from llama_herd.tasks.openai.other_fields import unknown_fields
from llama_herd.tasks.protocol.embedding_job import TEXT_SOURCES, EmbeddingJob, sources_of
from llama_herd.tasks.protocol.json_values import json_text
from llama_herd.tasks.protocol.result import Result, floats_of
from llama_herd.tasks.protocol.text_job import MAX_TEXTS, TextJob, count_from, num_texts_of
from llama_herd.tasks.settings import Settings

J = TypeVar("J", bound=TextJob)

EMBEDDINGS: Literal["/v1/embeddings"] = "/v1/embeddings"
#: Where the rows of a batch may go.
BatchEndpoint = Literal[
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank"
]
BATCH_ENDPOINTS: tuple[BatchEndpoint, ...] = get_args(BatchEndpoint)
#: Most inputs of a request, as at OpenAI.
MAX_INPUTS = 2048
ENCODINGS = ("float", "base64")
#: Fields that mean the same in a job.
SAME = ("model", "dimensions", "priority", "prompt_name", "truncate")
KNOWN = ("input", "encoding_format", "user", *SAME)


class TextBody(Generic[J]):
    """A request of many texts, read and checked: its jobs. source: where it has its texts.

    A null counts as absent. Raises InvalidJob with every wrong field.
    """

    source: ClassVar[str]
    jobs: list[J]

    @property
    def only_job(self) -> J:
        """The job, where there may be one alone. Raises InvalidJob."""
        if len(self.jobs) > 1:
            message = f"is too much for one row, which may have {MAX_TEXTS} texts. Fix: several rows"
            raise InvalidJob([FieldError(self.source, message)])
        return self.jobs[0]


class EmbeddingBody(TextBody[EmbeddingJob]):
    """A request for vectors, and whether these are to be Base64."""

    source = "input"

    def __init__(self, body: Mapping[str, Any], settings: Settings) -> None:
        given = {name: value for name, value in body.items() if value is not None}
        errors = unknown_fields(given, KNOWN)
        self.is_base64 = given.get("encoding_format") == "base64"
        if given.get("encoding_format", "float") not in ENCODINGS:
            errors.append(FieldError("encoding_format", f"must be {' or '.join(ENCODINGS)}"))
        inputs = _inputs_of(given.get("input"), errors)
        self.jobs = []
        fields = {name: given[name] for name in SAME if name in given}
        first = 0
        for source in sources_of(inputs, settings.max_prompt_bytes) if inputs else ():
            try:
                self.jobs.append(EmbeddingJob.parse(source | fields, settings))
            except InvalidJob as error:
                errors += map(_in_body, count_from(first, error).fields)
            first += num_texts_of(source)
        if errors:
            raise InvalidJob(list(dict.fromkeys(errors)))


def _inputs_of(given: Any, errors: list[FieldError]) -> Sequence[Any]:
    """The texts, or lists of ids, that are given alone or as a list."""
    if given is None:
        errors.append(FieldError("input", "is required"))
        return []
    is_many = isinstance(given, list) and not (given and isinstance(given[0], int))
    inputs = given if is_many else [given]
    kinds = {type(one) for one in inputs}
    if kinds not in ({str}, {list}):
        errors.append(FieldError("input", "must be a text, a list of token ids, or a list of either"))
    elif len(inputs) > MAX_INPUTS:
        errors.append(FieldError("input", f"must be at most {MAX_INPUTS} inputs, got {len(inputs)}"))
    elif not all(inputs):
        number = next(number for number, one in enumerate(inputs) if not one)
        errors.append(FieldError("input", f"input {number} must not be empty: nothing has no vector"))
    else:
        return inputs
    return []


def _in_body(error: FieldError) -> FieldError:
    """An error of a job as one of the body."""
    first, *rest = error.field.split(".")
    return FieldError(".".join(["input", *rest]), error.message) if first in TEXT_SOURCES else error


class Vector(AnswerModel):
    """The vector of one input."""

    object: str = Field(default="embedding", description="Always `embedding`.")
    index: int = Field(description="Number of the input.")
    embedding: tuple[float, ...] | str = Field(
        description="Its numbers; with `base64` their bytes as float32, little-endian, in Base64."
    )


class VectorUsage(AnswerModel):
    """Number of tokens of all inputs."""

    prompt_tokens: int = Field(description="Tokens of all inputs.")
    total_tokens: int = Field(description="The same.")


class VectorList(AnswerModel):
    """The vectors of all inputs, in their order."""

    object: str = Field(default="list", description="Always `list`.")
    data: tuple[Vector, ...] = Field(description="One for each input.")
    model: str = Field(description="The model that was asked.")
    usage: VectorUsage = Field(description="Tokens of all inputs.")


def answer_pieces(results: Sequence[Result], model: str | None, *, is_base64: bool) -> Iterator[str]:
    """The whole answer, of results that are at hand, in pieces."""
    yield HEAD
    first = 0
    for result in results:
        yield from vector_pieces(result, first, is_base64=is_base64)
        first += len(result.vectors or ())
    counts = [result.usage.prompt_tokens for result in results if result.usage]
    yield tail(model, sum(counts) if counts else None)


HEAD = '{"object":"list","data":['


def vector_pieces(result: Result, first: int, *, is_base64: bool) -> Iterator[str]:
    """The vectors of one job as JSON. first: the number of its first input; others follow a comma."""
    for number, vector in enumerate(result.vectors or (), first):
        told = vector if is_base64 or vector is None else list(floats_of(vector))
        item = {"object": "embedding", "index": number, "embedding": told}
        yield f"{',' if number else ''}{json_text(item)}"


def tail(model: str | None, num_tokens: int | None) -> str:
    """The end of the answer; None: nobody has counted its tokens alone."""
    usage = None if num_tokens is None else {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return f'],"model":{json_text(model)},"usage":{json_text(usage)}}}'


def embedding_schema(ref: str) -> dict[str, Any]:
    """The schema of a request."""
    job = EmbeddingJob.model_json_schema(ref_template=ref)["properties"]
    one = [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]
    many = [{"type": "array", "items": each, "minItems": 1, "maxItems": MAX_INPUTS} for each in one]
    own = {
        "input": {"anyOf": [*one, *many], "description": "Texts, or lists of the model's token ids."},
        "encoding_format": {"enum": [*ENCODINGS, None], "description": "How vectors are written."},
        "user": {"description": "Ignored: OpenAI's own bookkeeping."},
    }
    fields = {**own, **{name: job[name] for name in SAME}}
    return {"type": "object", "required": ["input"], "properties": fields, "additionalProperties": False}
