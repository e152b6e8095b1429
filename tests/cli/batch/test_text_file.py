"""Encodings of files: what is not UTF-8 is told with the fix, and the fix works."""

import gzip
from contextlib import suppress
from encodings.aliases import aliases
from pathlib import Path

import pytest

from llama_herd.cli.batch.input_file import InputOptions, open_source
from llama_herd.cli.batch.text_file import check_encoding, open_text
from llama_herd.errors import BadInput

TEXT = 'prompt,n\r\nGrüße,1\r\n"zwei\nZeilen",2\r\n'
PROMPTS = ["Grüße", "zwei\nZeilen"]
#: By each encoding what a person is told to say.
FIXES = {
    "latin-1": "cp1252",
    "cp1252": "cp1252",
    "utf-16": "utf-16",
    "utf-16-le": "utf-16-le",
    "utf-16-be": "utf-16-be",
    "utf-32": "utf-32",
}


def prompts(path: Path, encoding: str | None = None) -> list[object]:
    found = open_source(str(path), InputOptions(encoding=encoding)).rows()
    return [row.fields["prompt"] for row in found if row and row.fields]


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
@pytest.mark.parametrize(("encoding", "fix"), FIXES.items())
def test_another_encoding_is_named_with_the_fix_which_works(
    tmp_path: Path, encoding: str, fix: str, name: str
) -> None:
    path, raw = tmp_path / name, TEXT.encode(encoding)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    with pytest.raises(BadInput, match=f"in.csv.* is not UTF-8 text.*--encoding {fix}") as caught:
        prompts(path)
    assert "\n" not in str(caught.value)
    assert prompts(path, fix) == prompts(path, encoding) == PROMPTS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_mark_of_utf_8_is_no_part_of_a_name(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(TEXT.encode(encoding))
    assert prompts(path) == prompts(path, "utf-8") == prompts(path, "utf-8-sig") == PROMPTS


def test_the_line_and_the_byte_are_named(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"prompt\n" + b"x\n" * 100_000 + b"caf\xe9\n" + b"x\n" * 100_000)
    with pytest.raises(BadInput, match=r"line 100,002 has the byte 0xE9\. "):
        prompts(path)
    path.write_bytes(b"prompt\nx\n\xc3")
    with pytest.raises(BadInput, match=r"line 3 has the byte 0xC3\. "):
        prompts(path)


def test_a_wrong_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes("prompt\né\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"in.csv is not text in ascii: ordinal not in range\(128\)"):
        prompts(path, "ascii")


@pytest.mark.parametrize("content", [TEXT.encode(), bytes(range(256)), b"prompt\n" * 3])
def test_no_encoding_that_python_knows_breaks_on_foreign_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    for encoding in sorted({*aliases.values()}):
        with suppress(BadInput):
            check_encoding(encoding)
            prompts(path, encoding)


@pytest.mark.parametrize("name", ["in.jsonl", "in.json", "in.txt"])
def test_lines_and_objects_may_be_in_another_encoding_too(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = "Grüße" if path.suffix == ".txt" else '{"prompt": "Grüße"}'
    path.write_text(f"[{text}]" if path.suffix == ".json" else text, "utf-16")
    with pytest.raises(BadInput, match=f"{name} is not UTF-8 text, but UTF-16. Fix: --encoding utf-16"):
        prompts(path)
    assert prompts(path, "utf-16") == ["Grüße"]


def test_text_is_decoded_piece_by_piece(tmp_path: Path) -> None:
    """Pieces of the file end within characters."""
    path, text = tmp_path / "in.txt", "ä€😀\n" * 50_000
    path.write_text(text, "utf-16-le")
    with open_text(str(path), "utf-16-le") as stream:
        found = b"".join(iter(lambda: stream.read(1000), b""))
    assert found.decode() == text
