"""What became of rows, as lines of OpenAI's output and error files, which show which rows are done."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from time import time
from typing import Any

from llama_herd.tasks.batch.row_request import RowRequest
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.openai.embeddings import EMBEDDINGS, answer_pieces
from llama_herd.tasks.openai.ranks import RERANK, RankList
from llama_herd.tasks.openai.response import response_pieces
from llama_herd.tasks.openai.responses.answer import ResponseFrame
from llama_herd.tasks.openai.responses.body import RESPONSES
from llama_herd.tasks.protocol.embedding_job import TEXT_SOURCES, EmbeddingJob
from llama_herd.tasks.protocol.job import SOURCES, GenerationJob
from llama_herd.tasks.protocol.json_values import json_pieces, json_text
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.result import Result

#: Characters that some readers take for the end of a line.
_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
#: The beginning of each line of an output or error file: which row of which run it answers.
_LINE_START = re.compile(rb'\{"id":"batch_req_([a-z0-9]+)-([0-9]{1,12})"')


def output_line(run_id: str, item: BatchItem, *, with_prompt: bool = False) -> bytes:
    """The line of a row that ended well; on request with its prompt: text, ids or messages."""
    request: RowRequest = item.row.tag
    assert item.result is not None  # only rows with a result come here
    head = _head(run_id, item, with_prompt=with_prompt)
    response = {"status_code": 200, "request_id": item.job_id}
    before = f'{json_text(head)[:-1]},"response":{json_text(response)[:-1]},"body":'
    return _line(chain((before,), _body(request, item, item.result), ('},"error":null}',)))


def vector_line(run_id: str, item: BatchItem, *, with_prompt: bool = False) -> bytes:
    """The line of a row whose vector stands in a file of its own, at the row's position."""
    head = _head(run_id, item, with_prompt=with_prompt)
    where = {"position": item.row.tag.position, "model": item.model, "error": None}
    return _line((json_text(head | where),))


def _head(run_id: str, item: BatchItem, *, with_prompt: bool) -> dict[str, Any]:
    head: dict[str, Any] = {"id": line_id(run_id, item.index), "custom_id": item.row.tag.custom_id}
    if with_prompt:
        assert isinstance(item.row.job, GenerationJob | EmbeddingJob | RankingJob)
        sources = {*SOURCES, *TEXT_SOURCES, "query"}
        (prompt,) = item.row.job.model_dump(include=sources, exclude_none=True).values()
        head["prompt"] = prompt if item.row.tag.position is None else prompt[0]
    return head


def _body(request: RowRequest, item: BatchItem, result: Result) -> Iterator[str]:
    """The answer in the form of the row's endpoint."""
    assert request.endpoint is not None  # only rows that were understood have a result
    if request.position is not None:  # a job's tokens are those of all its rows
        result = result.model_copy(update={"usage": None})
    if request.endpoint == EMBEDDINGS:
        return answer_pieces([result], item.model, is_base64=request.is_base64)
    if request.endpoint == RERANK:
        return iter((_ranks(request, item, result),))
    if request.endpoint == RESPONSES:
        return json_pieces(ResponseFrame(item.job_id, item.model, int(time())).whole(result))
    return response_pieces(request.endpoint, item.job_id, item.model, result)


def _ranks(request: RowRequest, item: BatchItem, result: Result) -> str:
    assert request.ranks is not None
    assert result.usage is not None  # of a job that ended well
    logits = (rank[0] for rank in result.floats)
    told = RankList.of(logits, request.ranks, str(item.model), result.usage.prompt_tokens)
    return told.model_dump_json(exclude_none=True)


def error_line(run_id: str, item: BatchItem) -> bytes:
    """The line of a row that failed; `line` is its number in the input."""
    request: RowRequest = item.row.tag
    failure = item.failure
    error = {"code": failure.code, "message": failure.message} if failure else None
    head = {"id": line_id(run_id, item.index)}
    fields = {"line": item.index, "custom_id": request.custom_id, "response": None, "error": error}
    return _line((json_text({**head, **fields}),))


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


def answered_rows(path: Path, run_id: str) -> Iterator[tuple[int, int]]:
    """The numbers of a run's rows that have lines in a file, and where in it these begin."""
    start = 0
    with path.open("rb") as file:
        for line in file:
            row = answered_row(line, run_id)
            if row is not None:
                yield row, start
            start += len(line)
