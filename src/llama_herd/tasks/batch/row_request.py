"""Reads rows of the input as jobs: lines of OpenAI's batch format, or lines with a job's fields."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from llama_herd.error_code import ErrorCode
from llama_herd.errors import MAX_FIELD_ERRORS, FieldError, InvalidJob
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.client.batch.batch_progress import DoneRows
from llama_herd.tasks.client.batch.batch_row import BatchRow
from llama_herd.tasks.client.batch.joined_rows import joined_left
from llama_herd.tasks.client.batch.row_feed import BULK, checked_row
from llama_herd.tasks.openai.embeddings import BATCH_ENDPOINTS, EMBEDDINGS, BatchEndpoint, EmbeddingBody
from llama_herd.tasks.openai.other_fields import shown_name
from llama_herd.tasks.openai.ranks import RERANK, RankBody
from llama_herd.tasks.openai.request_body import BODY, CHAT, COMPLETIONS, RequestBody
from llama_herd.tasks.openai.responses.body import RESPONSES, ResponseBody
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.job import GenerationJob, seed_of
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.structured_outputs import FORM_FIELDS
from llama_herd.tasks.settings import Settings

J = TypeVar("J", EmbeddingJob, RankingJob)

MAX_ID_CHARS = 512

_FIRST_SLOTS = 1 << 10
_BITS = (1 << 64) - 1


class CustomIds:
    """Which line used a name first.

    It keeps only 64 bits of a name's hash and the line, in a table with linear probing that is at most
    two thirds full: 18 to 36 bytes a name, where a dict would take 150.
    """

    def __init__(self) -> None:
        self._make_table(_FIRST_SLOTS)

    def _make_table(self, num_slots: int) -> None:
        self._num = 0
        self._hashes = array("Q", bytes(8 * num_slots))
        self._lines = array("I", bytes(4 * num_slots))  # 0: the slot is free

    def first_line(self, custom_id: str, line: int) -> int:
        """The earlier line with this name. If there is none, `line`, from 1 on, which now owns the name."""
        if 3 * self._num >= 2 * len(self._lines):
            self._double_table()
        return self._insert(hash(custom_id) & _BITS, line)

    def _insert(self, hashed: int, line: int) -> int:
        hashes, lines = self._hashes, self._lines
        last = len(lines) - 1
        slot = hashed & last
        while lines[slot]:
            if hashes[slot] == hashed:
                return lines[slot]
            slot = (slot + 1) & last
        hashes[slot], lines[slot] = hashed, line
        self._num += 1
        return line

    def _double_table(self) -> None:
        hashes, lines = self._hashes, self._lines
        self._make_table(2 * len(lines))
        for hashed, line in zip(hashes, lines, strict=True):
            if line:
                self._insert(hashed, line)


#: Fields that only a line of OpenAI's format has.
_OPENAI_FIELDS = frozenset({"method", "url", "body"})
_OPENAI_LINE = _OPENAI_FIELDS | {"custom_id"}
#: Fields of a row that is a text.
_TEXT_LINE = frozenset({"text", "custom_id"})
_SAMPLING_FIELDS = frozenset(SamplingParams.model_fields)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A row's name and the format of its answer; None for what was not understood.

    is_base64: how its vectors are written. ranks: what it asks of documents. position: the number of a row
    that is a text, from 0.
    """

    custom_id: str | None = None
    endpoint: BatchEndpoint | None = None
    is_base64: bool = False
    ranks: RankBody | None = None
    position: int | None = None


class RequestReader:
    """Turns rows of the input into rows of a batch; a bad row carries its failure."""

    def __init__(self, settings: Settings, options: RowOptions, run_id: str) -> None:
        self._settings = settings
        self._options = options
        self._root = run_id if options.seed is None else options.seed
        self._names = CustomIds()
        self._num_read = 0
        #: Default fields of a job, and fields that the options override.
        self._defaults = {**BULK, "priority": options.priority}
        self._overrides = {} if options.model is None else {"model": options.model}

    def read(self, row: SourceRow) -> BatchRow:
        """Read a row. Never raises: a bad line does not stop the batch."""
        errors: list[FieldError] = []
        job: Job | None = None
        request = RowRequest()
        self._num_read += 1
        if row.fields is None or row.complaint:
            errors.append(FieldError("line", row.complaint))
            if row.fields is not None:
                request = RowRequest(self._custom_id(row.line, row.fields, errors))
        elif self._options.embed is not None:
            job, request = self._read_text(row.line, row.fields, errors)
        elif _OPENAI_FIELDS & row.fields.keys():
            job, request = self._read_openai(row.line, row.fields, errors)
        else:
            job, request = self._read_plain(row.line, row.fields, errors)
        if job is not None and not errors:
            return BatchRow(row.line, job, tag=request)
        message = str(InvalidJob(list(dict.fromkeys(errors))))
        return BatchRow(row.line, failure=Failure(code=ErrorCode.INVALID_LINE, message=message), tag=request)

    def rows_left(self, rows: Iterable[SourceRow | None], done: DoneRows) -> Iterator[BatchRow | None]:
        """The rows that are not done, texts joined; None while the next row has not arrived."""
        embed = self._options.embed
        if embed is None:
            return self._each_left(rows, done)
        return joined_left((row and self.read(row) for row in rows), done, embed.texts_per_job)

    def _each_left(self, rows: Iterable[SourceRow | None], done: DoneRows) -> Iterator[BatchRow | None]:
        for row in rows:
            if row is None:
                yield None
            elif row.line not in done:
                yield self.read(row)
            elif row.fields is not None:  # its name stays in use
                self._custom_id(row.line, row.fields, [])

    def _read_text(
        self, line: int, fields: Mapping[str, Any], errors: list[FieldError]
    ) -> tuple[EmbeddingJob | None, RowRequest]:
        custom_id = self._custom_id(line, fields, errors)
        request = RowRequest(custom_id, EMBEDDINGS, position=self._num_read - 1)
        if {"url", "body"} <= fields.keys():
            errors.append(FieldError("line", "is a request in OpenAI's form. Fix: leave out --embed"))
            return None, request
        unknown = (_unknown(name, _TEXT_LINE) for name in fields if name not in _TEXT_LINE)
        errors += islice(unknown, MAX_FIELD_ERRORS + 1)
        text = fields.get("text")
        if not text or not isinstance(text, str):
            errors.append(FieldError("text", "must be a text that is not empty"))
            return None, request
        try:
            return EmbeddingJob.parse({"texts": [text], **self._options.text_fields}, self._settings), request
        except InvalidJob as error:
            errors += error.fields
        return None, request

    def _read_openai(
        self, line: int, fields: Mapping[str, Any], errors: list[FieldError]
    ) -> tuple[Job | None, RowRequest]:
        url, body = fields.get("url"), fields.get("body")
        unknown = (_unknown(name, _OPENAI_LINE) for name in fields if name not in _OPENAI_LINE)
        errors += islice(unknown, MAX_FIELD_ERRORS + 1)
        if fields.get("method") != "POST":
            errors.append(FieldError("method", "must be POST"))
        if url not in BATCH_ENDPOINTS:
            errors.append(FieldError("url", f"must be {' or '.join(BATCH_ENDPOINTS)}"))
        if not isinstance(body, Mapping):
            errors.append(FieldError("body", "must be a JSON object"))
        request = RowRequest(self._custom_id(line, fields, errors), url if url in BATCH_ENDPOINTS else None)
        if request.endpoint is None or not isinstance(body, Mapping):
            return None, request
        given = {name: value for name, value in {**body, **self._overrides}.items() if name != "priority"}
        if body.get("priority") is not None:  # it is the batch's, and keys of the gateway have a limit
            errors.append(FieldError(f"{BODY}.priority", "not supported"))
        try:
            if request.endpoint == EMBEDDINGS:
                asked = EmbeddingBody(given, self._settings)
                return self._in_bulk(asked.only_job), replace(request, is_base64=asked.is_base64)
            if request.endpoint == RERANK:
                ranks = RankBody(given, self._settings)
                return self._in_bulk(ranks.only_job), replace(request, ranks=ranks)
            found = (
                ResponseBody(given) if request.endpoint == RESPONSES else RequestBody(request.endpoint, given)
            )
            return found.job(self._settings, self._defaults_of(body), self._sampling(line)), request
        except InvalidJob as error:
            for field, message in error.fields:
                errors.append(FieldError(BODY if field == BODY else f"{BODY}.{field}", message))
        return None, request

    def _in_bulk(self, job: J) -> J:
        """A job of texts as those of batches are."""
        return job.model_copy(update=self._defaults)

    def _read_plain(
        self, line: int, fields: Mapping[str, Any], errors: list[FieldError]
    ) -> tuple[GenerationJob | None, RowRequest]:
        given = {name: value for name, value in fields.items() if name != "custom_id"}
        sampling = {name: given.pop(name) for name in _SAMPLING_FIELDS & given.keys()}
        extra = given.pop("sampling", {})
        if isinstance(extra, Mapping):
            sampling |= extra
        else:
            errors.append(FieldError("sampling", "must be a JSON object"))
        if self._options.is_chat and isinstance(given.get("prompt"), str) and "messages" not in given:
            turns = {"system": self._options.system, "user": given.pop("prompt")}
            given["messages"] = [
                {"role": role, "content": content} for role, content in turns.items() if content is not None
            ]
        request = RowRequest(
            self._custom_id(line, fields, errors), CHAT if "messages" in given else COMPLETIONS
        )
        try:
            own = {"sampling": self._sampling(line) | sampling, **self._overrides}
            fields = {**self._defaults_of(given), **given, **own}
            return checked_row(GenerationJob.parse(fields, self._settings)), request
        except InvalidJob as error:
            errors += error.fields
        return None, request

    def _custom_id(self, line: int, fields: Mapping[str, Any], errors: list[FieldError]) -> str | None:
        """The row's name, which must be unique."""
        is_openai = bool(_OPENAI_FIELDS & fields.keys())
        custom_id = fields.get("custom_id", None if is_openai else f"line-{line}")
        is_name = isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_ID_CHARS
        if not is_name or any("\ud800" <= char <= "\udfff" for char in custom_id):  # lone surrogates
            told = f"must be a string of 1 to {MAX_ID_CHARS} characters, got {_kind_of_name(custom_id)}"
            errors.append(FieldError("custom_id", told))
            return None
        first = self._names.first_line(custom_id, line)
        if first != line:
            errors.append(
                FieldError("custom_id", f"must be unique, but lines {first} and {line} have the same")
            )
        return str(custom_id)

    def _defaults_of(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a job whose line does not set them; of the forms of an output a line sets either."""
        if self._options.response_format is None or not FORM_FIELDS.isdisjoint(fields):
            return self._defaults
        return {**self._defaults, "response_format": self._options.response_format}

    def _sampling(self, line: int) -> dict[str, Any]:
        """The sampling fields of a line that sets none."""
        return {"seed": seed_of(f"{self._root}-{line}"), **self._options.sampling}


def _kind_of_name(given: object) -> str:
    """What stands where a row's name should, without a text of it."""
    match given:
        case None:
            return "none"
        case str() if 0 < len(given) <= MAX_ID_CHARS:
            return "one with half a pair of surrogates"
        case str():
            return f"{len(given):,}"
        case bool():
            return "true" if given else "false"
        case int() | float():
            return f"the number {given}. Fix: put it into quotes"
    return "a list or an object"


def _unknown(name: str, known: Collection[str]) -> FieldError:
    meant = did_you_mean(close_names(name, known))
    return FieldError(shown_name(name), f"unknown field{meant}")
