"""A row's outcome as a line of OpenAI's output or error file."""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from llama_herd.tasks.batch.row_request import RowRequest
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.openai.json_pieces import compact_json
from llama_herd.tasks.openai.response import response_pieces
from llama_herd.tasks.protocol.job import SOURCES, GenerationJob

#: Characters that some readers take for the end of a line.
_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
#: The beginning of each line of an output or error file: which row of which run it answers.
_LINE_START = re.compile(rb'\{"id":"batch_req_([a-z0-9]+)-([0-9]{1,12})"')


def output_line(run_id: str, item: BatchItem, *, with_prompt: bool = False) -> bytes:
    """The line of a row that ended well; on request with its prompt, ids or messages."""
    request: RowRequest = item.row.tag
    assert item.result is not None  # only rows with a result come here
    assert request.endpoint is not None  # only rows that were understood have a result
    prompt = {"prompt": _prompt(item)} if with_prompt else {}
    head = {"id": line_id(run_id, item.index), "custom_id": request.custom_id, **prompt}
    response = {"status_code": 200, "request_id": item.job_id}
    before = f'{compact_json(head)[:-1]},"response":{compact_json(response)[:-1]},"body":'
    body = response_pieces(request.endpoint, item.job_id, item.model, item.result)
    return _line(chain((before,), body, ('},"error":null}',)))


def _prompt(item: BatchItem) -> Any:
    """The job's prompt in the form in which it was given: text, ids or messages."""
    job = item.row.job
    assert isinstance(job, GenerationJob)  # only rows that were understood have a result
    (given,) = job.model_dump(include=set(SOURCES), exclude_none=True).values()
    return given


def error_line(run_id: str, item: BatchItem) -> bytes:
    """The line of a row that failed; `line` is its number in the input."""
    request: RowRequest = item.row.tag
    failure = item.failure
    error = {"code": failure.code, "message": failure.message} if failure else None
    head = {"id": line_id(run_id, item.index)}
    fields = {"line": item.index, "custom_id": request.custom_id, "response": None, "error": error}
    return _line((compact_json({**head, **fields}),))


def _line(pieces: Iterable[str]) -> bytes:
    """A line of a file. Its id comes first: done rows are found by the beginnings of lines."""
    return b"".join(piece.translate(_LINE_ENDS).encode() for piece in pieces) + b"\n"


def line_id(run_id: str, row: int) -> str:
    """The id of a row of a run."""
    return f"batch_req_{run_id}-{row}"


def answered_row(line: bytes, run_id: str) -> int | None:
    """The number of the row that a line answers; None if it is no line of this run."""
    found = _LINE_START.match(line)
    return int(found[2]) if found is not None and found[1] == run_id.encode() else None
