"""A log that nobody reads holds up nobody."""

import logging
import os
from collections.abc import Iterator
from fcntl import F_GETPIPE_SZ, fcntl
from io import StringIO, TextIOWrapper
from pathlib import Path

import pytest

from llama_herd.ops import log_handler
from llama_herd.ops.log_handler import LogFile, LogHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIOWrapper]]:
    """An end to read, and a full one to write to."""
    reader, writer = os.pipe()
    os.write(writer, b"x" * fcntl(writer, F_GETPIPE_SZ))
    with os.fdopen(reader, "rb"), os.fdopen(writer, "w") as stream:
        yield reader, stream


def line(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_lines_that_nobody_reads_are_lost_and_counted(
    pipe: tuple[int, TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, stream = pipe
    monkeypatch.setattr(log_handler, "PATIENCE_S", 0.01)
    handler = LogHandler(stream)
    for number in range(3):
        handler.handle(line(f"lost {number}"))
    os.read(reader, 1 << 20)
    for number in range(2):
        handler.handle(line(f"read {number}"))
    told = "lines of the log are lost, since nobody read them: 3"
    assert os.read(reader, 1 << 20).decode().splitlines() == [told, "read 0", "read 1"]


def test_a_stream_that_is_no_file_is_written_to() -> None:
    stream = StringIO()
    LogHandler(stream).handle(line("told"))
    assert stream.getvalue() == "told\n"


def test_lines_that_cannot_be_written_are_lost_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    handler = LogFile(folder / "w.log")
    folder.rename(tmp_path / "old")
    for number in range(3):
        handler.handle(line(f"lost {number}"))
    folder.mkdir()
    handler.handle(line("written"))
    handler.close()
    told = "lines of the log are lost, since they could not be written: 3"
    assert (folder / "w.log").read_text().splitlines() == [told, "written"]
