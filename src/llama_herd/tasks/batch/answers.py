"""What became of rows, as lines of OpenAI's output and error files; and a file of such lines.

A file is only appended to, each line is whole, and it shows which rows are done.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Self

from llama_herd.errors import BadInput, HerdError
from llama_herd.tasks.batch.row_request import RowRequest
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.openai.embeddings import EMBEDDINGS, answer_pieces
from llama_herd.tasks.openai.ranks import RERANK, RankList
from llama_herd.tasks.openai.response import response_pieces
from llama_herd.tasks.protocol.embedding_job import TEXT_SOURCES, EmbeddingJob
from llama_herd.tasks.protocol.job import SOURCES, GenerationJob
from llama_herd.tasks.protocol.json_values import json_text
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


_CHUNK_BYTES = 1 << 16


class CannotWrite(HerdError):
    """A file of answers cannot be written any more. The lines in it are whole. error: the system's."""

    def __init__(self, message: str, error: OSError | None = None) -> None:
        super().__init__(message)
        self.error = error


class AnswerFile:
    """A file of answers, open within the block, and locked against other writers.

    Opening it does not change it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._num_bytes = 0

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            self._lock()
        except BadInput:
            os.close(self._descriptor)
            raise
        return self

    def _lock(self) -> None:
        """Keep others from writing. Raises BadInput."""
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise BadInput(
                f"{self.path} is not a plain file, so no run could continue from it. Fix: choose another -o"
            )
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                f"{self.path}: another process writes it. Fix: wait until that one ends, or choose another -o"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def repair(self) -> None:
        """Remove a last line that was cut off when its writer died."""
        self._num_bytes = whole_bytes(self._descriptor)
        os.ftruncate(self._descriptor, self._num_bytes)

    def line_offsets(self, run_id: str) -> Iterator[tuple[int, int]]:
        """The numbers of a run's rows, and where in the file their lines begin."""
        start = 0
        with self.path.open("rb") as file:
            for text in file:
                row = answered_row(text, run_id)
                if row is not None:
                    yield row, start
                start += len(text)

    def append(self, lines: Sequence[bytes]) -> None:
        """Write whole lines, and return when they are on disk. Raises CannotWrite."""
        if not lines:
            return
        text = memoryview(b"".join(lines))
        try:
            while text:
                text = text[os.write(self._descriptor, text) :]
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._num_bytes)
            raise CannotWrite(
                f"{self.path} cannot be written: {error.strerror}. Fix that, and run the same command again",
                error,
            ) from None
        self._num_bytes += sum(map(len, lines))


def whole_bytes(number: int) -> int:
    """The length of an open file up to its last line feed."""
    end = os.fstat(number).st_size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        feed = os.pread(number, end - start, start).rfind(b"\n")
        if feed >= 0:
            return start + feed + 1
        end = start
    return 0
