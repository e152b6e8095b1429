"""Reading rows: every kind of input, and everything that can be wrong with one."""

import gzip
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow
import pytest
from pyarrow.parquet import write_table

from llama_herd.cli.batch.input_file import InputOptions, open_source
from llama_herd.cli.batch.sources import ArrivingLines, StandardInput
from llama_herd.errors import BadInput
from llama_herd.extras import install_command
from llama_herd.tasks.batch.source_row import MAX_LINE_BYTES, NumberedLine, SourceRow, read_lines

ROWS = [{"prompt": "a"}, {"prompt": "ä\n"}]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def rows(path: Path, prompt: str | None = None, id: str | None = None) -> list[SourceRow]:
    return [
        row
        for row in open_source(str(path), InputOptions(prompt_column=prompt, id_column=id)).rows()
        if row is not None
    ]


def fields(path: Path, prompt: str | None = None, id: str | None = None) -> list[object]:
    return [row.fields for row in rows(path, prompt, id)]


def test_lines_are_counted_also_empty_ones_which_are_no_rows() -> None:
    stream = io.BytesIO(b"\xef\xbb\xbf{1}\r\n\r\n  \n{2}\n{3}")
    assert list(read_lines(stream)) == [
        NumberedLine(1, b"{1}"),
        NumberedLine(4, b"{2}"),
        NumberedLine(5, b"{3}"),
    ]


def test_a_line_that_is_too_long_is_skipped_without_being_held() -> None:
    stream = io.BytesIO(b"x" * 100_000 + b"\nshort\n" + b"y" * 11 + b"\n" + b"z" * 9)
    assert list(read_lines(stream, 10)) == [
        NumberedLine(1, None, 100_000),
        NumberedLine(2, b"short"),
        NumberedLine(3, None, 11),
        NumberedLine(4, b"z" * 9),
    ]


@pytest.mark.long
def test_a_line_of_100_mb_is_a_bad_row_and_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(b'{"prompt": "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + TEXT)
    long, *others = rows(path)
    told = "must be at most 8,388,608 bytes, got 100,000,014. Fix: shorten or split it"
    assert long == SourceRow(1, None, told)
    assert [row.fields for row in others] == ROWS


def test_plain_and_packed_lines_read_alike(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(TEXT)
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(TEXT))
    for name in ("in.jsonl", "in.jsonl.gz"):
        assert fields(tmp_path / name) == ROWS
        assert open_source(str(tmp_path / name), InputOptions()).num_rows() == 2


def test_each_line_of_plain_text_is_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b'one\r\n\n{"prompt": "two"}\n\xff\n \t\n  three:\t ')
    assert rows(tmp_path / "in.txt") == [
        SourceRow(1, {"prompt": "one"}),
        SourceRow(3, {"prompt": '{"prompt": "two"}'}),
        SourceRow(4, None, "is not UTF-8 text: byte 0 is invalid"),
        SourceRow(6, {"prompt": "  three:\t "}),
    ]
    assert open_source(str(tmp_path / "in.txt"), InputOptions()).num_rows() == 4


@pytest.mark.parametrize("indent", [None, 2])
def test_the_objects_of_an_array_are_rows(tmp_path: Path, indent: int | None) -> None:
    """Pieces of the file end anywhere: within a long row, within a number."""
    found = [{"prompt": "ä" * length, "n": length} for length in (0, 3, 70_000, 200_000, 5)] * 3
    text = json.dumps([*found, 7, found], indent=indent, ensure_ascii=False).encode()
    (tmp_path / "in.json").write_bytes(b"\xef\xbb\xbf \n" + text + b"\n ")
    (tmp_path / "in.json.gz").write_bytes(gzip.compress(text))
    for name in ("in.json", "in.json.gz"):
        *good, number, array = rows(tmp_path / name)
        assert [row.fields for row in good] == found
        assert (number, array) == (
            SourceRow(16, None, "must be a JSON object"),
            SourceRow(17, None, "must be a JSON object"),
        )
        assert open_source(str(tmp_path / name), InputOptions()).num_rows() == 17


def test_an_empty_array_has_no_rows_and_a_json_file_may_hold_lines(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text(" [ ] ")
    (tmp_path / "lines.json").write_bytes(TEXT)
    assert rows(tmp_path / "none.json") == []
    assert fields(tmp_path / "lines.json") == ROWS


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "at its beginning: Expecting value"),
        ('[{"secret": 1}', r"behind row 1: \] is missing"),
        ('[{"secret": 1} {"secret": 2}]', r"behind row 1: \] is missing"),
        ('[{"secret": 1},]', "behind row 1: Expecting value"),
        ('[{"secret": 1}, {"secret": }]', "behind row 1: Expecting value"),
        ('[{"secret": NaN}]', "at its beginning: NaN, "),
        ("[" * 100_000, "at its beginning: NaN, a number that is too long, or too deep nesting"),
        ('[{"secret": 1}] {"secret": 2}', "behind row 1: text follows the array"),
        ('[{}, {"a": 1, "a": "secret"}]', "behind row 1: an object has the field a twice. Fix: keep one"),
        ('[{"secret": "\udcff"}]', "at its beginning: it is not UTF-8 text: invalid start byte"),
    ],
)
def test_an_array_that_is_no_json_ends_with_the_place_without_a_word_of_it(
    tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "in.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadInput, match=f"in.json is not valid JSON {complaint}") as caught:
        rows(tmp_path / "in.json")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("num_chars", [MAX_LINE_BYTES, 2 * MAX_LINE_BYTES])
def test_an_element_of_an_array_may_be_as_long_as_a_line(tmp_path: Path, num_chars: int) -> None:
    (tmp_path / "in.json").write_text(f'[{{}}, {{"a": "{"x" * num_chars}"}}]')
    with pytest.raises(BadInput, match=r"behind row 1: .*an element has more than 8,388,608 characters"):
        list(open_source(str(tmp_path / "in.json"), InputOptions()).rows())


def test_a_file_that_cannot_be_looked_at_is_named() -> None:
    """As one in a folder that this user may not enter, which root may."""
    name = f"{'x' * 300}.csv"
    with pytest.raises(BadInput, match=f"{name} cannot be read: File name too long"):
        open_source(name, InputOptions())


def test_what_is_there_but_no_file_is_not_said_to_be_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path, tmp_path / "pipe.jsonl", Path(os.devnull)):
        with pytest.raises(BadInput, match=r"is not a plain file.* Fix: save it in one, or pipe JSON lines"):
            rows(path)


@pytest.mark.parametrize("name", ["in.xlsx", "in", "in.gz", "in.jsonl.bz2"])
def test_a_suffix_that_names_no_format_is_refused_with_those_that_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(TEXT)
    with pytest.raises(BadInput, match=r"names no format.*\.jsonl, .*\.parquet"):
        rows(tmp_path / name)


@pytest.fixture
def pipe() -> Iterator[tuple[int, BinaryIO]]:
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb", buffering=0) as end:
        yield reading, end


def test_rows_of_standard_input_are_there_once_they_are_whole(pipe: tuple[int, BinaryIO]) -> None:
    number, end = pipe
    source = StandardInput(number)
    found = source.rows()
    assert next(found) is None
    end.write(b'{"n": 1}\n{"n":')
    assert [next(found), next(found)] == [SourceRow(1, {"n": 1}), None]
    end.write(b' 2}\n{"n": 3}')
    assert [next(found), next(found)] == [SourceRow(2, {"n": 2}), None]
    end.close()
    assert list(found) == [SourceRow(3, {"n": 3})]
    assert source.num_rows() is None


def test_a_line_from_a_pipe_is_held_up_to_its_limit(pipe: tuple[int, BinaryIO]) -> None:
    number, end = pipe
    end.write(b"x" * 9 + b"\nshort\n" + b"y" * 100 + b"\n" + b"z" * 10)
    end.close()
    lines = read_lines(ArrivingLines(number), 10)
    assert list(lines) == [
        NumberedLine(1, b"x" * 9),
        NumberedLine(2, b"short"),
        NumberedLine(3, None, 100),
        NumberedLine(4, b"z" * 10),
    ]


@pytest.mark.parametrize("more", [b"", b"\n"])
@pytest.mark.parametrize("length", [11, 22, 25])
def test_a_long_line_at_the_end_is_counted_whole(length: int, more: bytes) -> None:
    lines = read_lines(io.BytesIO(b"short\n" + b"x" * length + more), 10)
    assert list(lines) == [NumberedLine(1, b"short"), NumberedLine(2, None, length)]


def test_a_closed_standard_input_is_one_line() -> None:
    with pytest.raises(BadInput, match="standard input cannot be read: Bad file descriptor"):
        list(StandardInput(1 << 19).rows())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b'{"prompt": "secret \xff"}', "is not UTF-8 text: byte 19 is invalid"),
        (b'{"prompt": "secret" "x"}', "is not valid JSON: Expecting ',' delimiter at column 21"),
        (b'{"prompt": "secret", "n": NaN}', "is not valid JSON: NaN"),
        (b'{"prompt": "secret", "n": ' + b"9" * 5000 + b"}", "must have at most 100 digits in a number"),
        (b"[" * 5000, "must be at most 64 levels deep, got at least 65"),
        (b"[" * 100_000, "must have at most 8192 objects and arrays, got at least "),
        (b"[" + b'"secret",' * 400_000 + b"1]", "must have at most 294912 values and names, got at least "),
        (b"[" + b"1," * 400_000 + b"1]", "must have at most 294912 values and names, got at least "),
        (
            b'{"secret":0' + b',"secret%d":0' * 200 % (*range(200),) + b"}",
            "must have at most 128 fields, got 201",
        ),
        (b'["secret"]', "must be a JSON object"),
        (b'{"prompt": "secret", "prompt": "x"}', "has the field prompt twice. Fix: keep one of them"),
        (b'{"body": {"n": 1, "model": "x", "model": "secret"}}', "has the field model twice"),
        (b'{"a secret": 1, "a secret": 2}', "has the field ? twice"),
    ],
)
def test_a_line_that_is_no_object_says_why_without_a_word_of_it(
    tmp_path: Path, text: bytes, complaint: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(text + b"\n" + TEXT)
    bad, *others = rows(tmp_path / "in.jsonl")
    assert (bad.line, bad.fields) == (1, None)
    assert bad.complaint.startswith(complaint)
    assert "secret" not in bad.complaint
    assert [row.fields for row in others] == ROWS


def test_columns_of_a_table_in_text_become_rows(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('\ufeffid,question\n1,"one\nline"\n2,two\n', encoding="utf-8")
    assert rows(path, "question", "id") == [
        SourceRow(3, {"prompt": "one\nline", "custom_id": "1"}),
        SourceRow(4, {"prompt": "two", "custom_id": "2"}),
    ]
    assert open_source(str(path), InputOptions(prompt_column="question")).num_rows() == 2
    (tmp_path / "in.tsv").write_text('id\tquestion\n1\t"one, two"\n')
    assert fields(tmp_path / "in.tsv", "question") == [{"prompt": "one, two"}]


def test_columns_of_a_parquet_file_become_rows(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    write_table(pyarrow.table({"q": [f"tale {n}" for n in range(1000)], "n": list(range(1000))}), path)
    source = open_source(str(path), InputOptions(prompt_column="q", id_column="n"))
    assert list(source.rows())[999] == SourceRow(1000, {"prompt": "tale 999", "custom_id": "999"})
    assert source.num_rows() == 1000


@pytest.mark.parametrize(
    "text", ['prompt\nfirst\n"open\nlast\n', 'prompt,id\nfirst,1\n"open,2\nlast,3', 'prompt\nfirst\n"']
)
def test_a_quote_that_is_never_closed_swallows_no_rows(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text)
    source = open_source(str(path), InputOptions())
    with pytest.raises(BadInput, match="a quote in the row of line 3 is never closed"):
        source.num_rows()
    path.write_text(f'{text}"')
    source.num_rows()


def test_a_quote_that_is_closed_too_late_swallows_no_rows(tmp_path: Path) -> None:
    """Those behind it would be read on, as if nothing had been between."""
    row = f"{'x' * 1023}\n"
    path = tmp_path / "in.csv"
    path.write_text(f'prompt\n"open\n{row * (MAX_LINE_BYTES // len(row))}last"\n')
    with pytest.raises(BadInput, match="a quote in the row of line 2 is not closed for 8,388,608 characters"):
        open_source(str(path), InputOptions()).num_rows()


def test_a_cell_that_is_too_long_on_its_line_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f"prompt\n{'x' * (MAX_LINE_BYTES + 1)}\nlast\n")
    long, last = open_source(str(path), InputOptions()).rows()
    assert (long and long.line, long and long.fields) == (2, None)
    assert last == SourceRow(3, {"prompt": "last"})


@pytest.mark.parametrize(
    "name", ["none.jsonl", "in.csv", "in.parquet", "torn.parquet", "cut.jsonl.gz", "no.jsonl.gz"]
)
def test_an_input_that_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "in.csv").write_text("question\nx\n")
    (tmp_path / "in.parquet").write_bytes(b"PAR1 is not enough")
    write_table(pyarrow.table({"prompt": [f"tale {n}" for n in range(1000)]}), tmp_path / "torn.parquet")
    text = (tmp_path / "torn.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(text[:100] + bytes(2000) + text[2100:])
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(os.urandom(1000))[:-20])
    (tmp_path / "no.jsonl.gz").write_bytes(TEXT)
    with pytest.raises(BadInput, match=name) as caught:
        rows(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_without_the_extra_a_parquet_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match=re.escape(install_command("batch"))):
        rows(tmp_path / "in.parquet")
