"""Reads rows of the input as jobs: lines of OpenAI's batch format, or lines with a job's fields."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.errors import MAX_FIELD_ERRORS, FieldError, InvalidJob
from llama_herd.tasks.batch.batch_progress import DoneRows
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.client.batch.batch_row import BatchRow
from llama_herd.tasks.client.batch.row_feed import BULK
from llama_herd.tasks.openai.request_body import BODY, CHAT, COMPLETIONS, ENDPOINTS, Endpoint, RequestBody
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.job import GenerationJob, seed_of
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.structured_outputs import FORM_FIELDS
from llama_herd.tasks.settings import Settings

MAX_ID_CHARS = 512

_FIRST_SLOTS = 1 << 10
_BITS = (1 << 64) - 1


def is_custom_id(value: object) -> bool:
    """Whether it can be a row's name: a text without lone surrogates."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


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


@dataclass(frozen=True)
class RowOptions:
    """Options for every row that does not set its own; `model` overrides the rows' own.

    seed: a row's seed derives from it and the row's line, the same in each run; without it, from the run.
    """

    model: str | None = None
    system: str | None = None
    is_chat: bool = False
    priority: int = BULK["priority"]
    seed: int | None = None
    response_format: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def check(self, settings: Settings) -> None:
        """Raise InvalidJob if no row could run with these options."""
        own = {
            "priority": self.priority,
            "model": self.model,
            "response_format": self.response_format,
            "sampling": {"seed": self.seed, **self.sampling},
        }
        GenerationJob.parse({"prompt": "any", **own}, settings)


#: Fields that only a line of OpenAI's format has.
_OPENAI_FIELDS = frozenset({"method", "url", "body"})
_SAMPLING_FIELDS = frozenset(SamplingParams.model_fields)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A row's name and the format of its answer; None for what was not understood."""

    custom_id: str | None = None
    endpoint: Endpoint | None = None


class RequestReader:
    """Turns rows of the input into rows of a batch; a bad row carries its failure."""

    def __init__(self, settings: Settings, options: RowOptions, run_id: str) -> None:
        self._settings = settings
        self._options = options
        self._root = run_id if options.seed is None else options.seed
        self._names = CustomIds()
        #: Default fields of a job, and fields that the options override.
        self._defaults = {**BULK, "priority": options.priority}
        self._overrides = {} if options.model is None else {"model": options.model}

    def read(self, row: SourceRow) -> BatchRow:
        """Read a row. Never raises: a bad line does not stop the batch."""
        if row.fields is None:
            return _failed_row(row.line, RowRequest(), [FieldError("line", row.complaint)])
        if _OPENAI_FIELDS & row.fields.keys():
            return self._read_openai(row.line, row.fields)
        return self._read_plain(row.line, row.fields)

    def rows_left(self, rows: Iterable[SourceRow | None], done: DoneRows) -> Iterator[BatchRow | None]:
        """The rows that are not done; None while the next row has not arrived."""
        for row in rows:
            if row is None:
                yield None
            elif row.line in done:
                self._skip(row)
            else:
                yield self.read(row)

    def _skip(self, row: SourceRow) -> None:
        """Skip a row that is done; its name stays in use."""
        if row.fields is not None:
            self._custom_id(row.line, row.fields, [])

    def _read_openai(self, line: int, fields: Mapping[str, Any]) -> BatchRow:
        url, body = fields.get("url"), fields.get("body")
        unknown = (name for name in fields if name not in _OPENAI_LINE)
        errors = [_unknown_field(name) for name in islice(unknown, MAX_FIELD_ERRORS + 1)]
        if fields.get("method") != "POST":
            errors.append(FieldError("method", "must be POST"))
        if url not in ENDPOINTS:
            errors.append(FieldError("url", f"must be {' or '.join(ENDPOINTS)}"))
        if not isinstance(body, Mapping):
            errors.append(FieldError("body", "must be a JSON object"))
        request = RowRequest(self._custom_id(line, fields, errors), url if url in ENDPOINTS else None)
        if request.endpoint is None or not isinstance(body, Mapping):
            return _failed_row(line, request, errors)
        try:
            found = RequestBody(request.endpoint, {**body, **self._overrides})
            job = found.job(self._settings, self._defaults_of(body), self._sampling(line))
        except InvalidJob as error:
            errors += (FieldError(_name_in_body(field), message) for field, message in error.fields)
        else:
            if not errors:
                return BatchRow(line, job, tag=request)
        return _failed_row(line, request, errors)

    def _read_plain(self, line: int, fields: Mapping[str, Any]) -> BatchRow:
        errors: list[FieldError] = []
        given = {name: value for name, value in fields.items() if name != "custom_id"}
        sampling = {name: given.pop(name) for name in _SAMPLING_FIELDS & given.keys()}
        extra = given.pop("sampling", {})
        if isinstance(extra, Mapping):
            sampling |= extra
        else:
            errors.append(FieldError("sampling", "must be a JSON object"))
        self._make_chat(given)
        request = RowRequest(
            self._custom_id(line, fields, errors), CHAT if "messages" in given else COMPLETIONS
        )
        try:
            own = {"sampling": self._sampling(line) | sampling, **self._overrides}
            job = GenerationJob.parse({**self._defaults_of(given), **given, **own}, self._settings)
        except InvalidJob as error:
            errors += error.fields
        else:
            if not errors:
                return BatchRow(line, job, tag=request)
        return _failed_row(line, request, errors)

    def _make_chat(self, given: dict[str, Any]) -> None:
        """Turn a bare prompt into a chat message, if the options ask for it."""
        if self._options.is_chat and isinstance(given.get("prompt"), str) and "messages" not in given:
            turns = {"system": self._options.system, "user": given.pop("prompt")}
            given["messages"] = [
                {"role": role, "content": content} for role, content in turns.items() if content is not None
            ]

    def _custom_id(self, line: int, fields: Mapping[str, Any], errors: list[FieldError]) -> str | None:
        """The row's name, which must be unique."""
        is_openai = bool(_OPENAI_FIELDS & fields.keys())
        custom_id = fields.get("custom_id", None if is_openai else f"line-{line}")
        if not is_custom_id(custom_id):
            errors.append(FieldError("custom_id", f"must be a string of 1 to {MAX_ID_CHARS} characters"))
            return None
        first = self._names.first_line(str(custom_id), line)
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


_OPENAI_LINE = _OPENAI_FIELDS | {"custom_id"}


def _failed_row(line: int, request: RowRequest, errors: list[FieldError]) -> BatchRow:
    failure = Failure(code=ErrorCode.INVALID_LINE, message=str(InvalidJob(list(dict.fromkeys(errors)))))
    return BatchRow(line, failure=failure, tag=request)


def _name_in_body(field: str) -> str:
    return BODY if field == BODY else f"{BODY}.{field}"


def _unknown_field(name: str) -> FieldError:
    return FieldError(_shown_name(name), f"unknown field{did_you_mean(close_names(name, _OPENAI_LINE))}")


def _shown_name(name: str) -> str:
    return name if name.isidentifier() else "?"
