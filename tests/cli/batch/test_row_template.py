"""Prompts with columns in them: every name that a column may have, every brace, and values of every kind."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, strategies as some
from pyarrow.parquet import write_table

from llama_herd.cli.batch.input_file import InputOptions, open_source
from llama_herd.cli.batch.row_template import TextTemplate, read_messages
from llama_herd.errors import BadInput, InvalidJob
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.settings import Settings

names = some.text(some.characters(exclude_characters="{}", exclude_categories=["Cs"]))


def rows(path: Path, **options: Any) -> list[SourceRow | None]:
    return list(open_source(str(path), InputOptions(**options)).rows())


@given(some.lists(some.tuples(some.text(), names, some.text()), max_size=4))
def test_each_column_stands_in_its_place_and_doubled_braces_are_braces(
    parts: list[tuple[str, str, str]],
) -> None:
    cells = {name: value for _, name, value in parts}
    text = "".join(f"{escaped(before)}{{{name}}}" for before, name, _ in parts)
    found = TextTemplate.parse(text, "--prompt").fill(cells)
    assert found == "".join(before + cells[name] for before, name, _ in parts)


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@pytest.mark.parametrize(
    ("text", "place"), [("a { b", 3), ("{a", 1), ("a}", 2), ("{a{b}", 1), ("{{a}", 4), ("{{}", 3)]
)
def test_a_brace_that_belongs_to_no_column_is_named_with_its_place(text: str, place: int) -> None:
    with pytest.raises(BadInput, match=rf"--prompt: the [{{}}] at character {place} .*Fix: write {{NAME}}"):
        InputOptions(prompt=text)


def test_columns_of_odd_names_fill_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('order id,a.b,"x:>9",,prompt\n7,dot,colon,empty,unused\n')
    text = "{order id} {a.b} {x:>9} {} {{order id}} {{{a.b}}}"
    assert rows(path, prompt=text) == [SourceRow(2, {"prompt": "7 dot colon empty {order id} {dot}"})]
    write_table(pyarrow.table({"a": [{"b": 1}], "a.b": ["dot"], "order id": [7]}), tmp_path / "in.parquet")
    assert rows(tmp_path / "in.parquet", prompt="{a.b} {a} {order id}") == [
        SourceRow(1, {"prompt": 'dot {"b": 1} 7'})
    ]


def test_values_of_json_are_texts_or_json(tmp_path: Path) -> None:
    record = {"n": 1, "f": 0.5, "b": True, "t": 'a "b"', "l": ["ä", 1], "o": {"k": None}}
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    (found,) = rows(tmp_path / "in.jsonl", prompt="{n} {f} {b} {t} {l} {o}")
    assert found == SourceRow(1, {"prompt": '1 0.5 true a "b" ["ä", 1] {"k": null}'})


@pytest.mark.parametrize(
    ("record", "column"), [({"title": None, "text": "x"}, "title"), ({"title": "x"}, "text")]
)
def test_a_value_that_is_missing_fails_its_row_alone_under_its_own_name(
    tmp_path: Path, record: dict[str, Any], column: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, [{"id": "a", **record}, {"id": "b", "title": "", "text": "x"}]))
    )
    source = open_source(str(path), InputOptions(prompt="{title}: {text}", id_column="id"))
    reader = RequestReader(Settings(), RowOptions(), "r")
    bad, good = [reader.read(row) for row in source.rows() if row is not None]
    assert bad.failure is not None
    assert bad.failure.message == f"line: has no value in the column {column}"
    assert (bad.tag.custom_id, good.tag.custom_id, good.failure) == ("a", "b", None)


def test_a_column_that_is_missing_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("title, text\na,b\n")
    expected = "in.csv has no column text; its columns are: title, ' text'. Did you mean ' text'? Fix: name"
    with pytest.raises(BadInput, match=re.escape(expected) + ".* by --prompt$"):
        rows(path, prompt="{title} {text}")
    with pytest.raises(BadInput, match=r"no column key;.* by --id-column$"):
        rows(path, prompt="{title}", id_column="key")
    with pytest.raises(BadInput, match=r"no column prompt; .*--prompt-column$"):
        rows(path)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_is_named_and_can_be_given(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(separator.join(["title", "text"]) + "\n" + separator.join(["a", "b,c"]) + "\n")
    said = "tab" if separator == "\t" else f"'{separator}'"
    with pytest.raises(BadInput, match=rf"Fix: .* separated by .*, say --separator {re.escape(said)}$"):
        rows(path, prompt="{title}: {text}")
    assert rows(path, prompt="{title}: {text}", separator=separator) == [SourceRow(2, {"prompt": "a: b,c"})]


def test_a_column_that_is_there_twice_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("a,b,b\n1,2,3\n")
    assert rows(path, prompt="{a}") == [SourceRow(2, {"prompt": "1"})]
    with pytest.raises(BadInput, match=r"in\.csv has 2 columns b\. Fix: rename"):
        rows(path, prompt="{b}")
    table = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 3, names=["a", "b", "b"])
    write_table(table, tmp_path / "in.parquet")
    assert rows(tmp_path / "in.parquet", prompt="{a}") == [SourceRow(1, {"prompt": "x"})]
    with pytest.raises(BadInput, match=r"in\.parquet has 2 columns b"):
        rows(tmp_path / "in.parquet", prompt="{b}")


def test_messages_have_columns_in_their_texts(tmp_path: Path) -> None:
    path, file = tmp_path / "in.csv", tmp_path / "chat.json"
    path.write_text("title,text\na,b\n")
    parts = [{"type": "text", "text": "{text}"}]
    chat = [{"role": "system", "content": "JSON: {{}}"}, {"role": "user", "content": parts}]
    file.write_text(json.dumps(chat))
    options = InputOptions(messages=read_messages(file), id_column="title")
    (row,) = open_source(str(path), options).rows()
    assert row is not None
    assert row.fields == {
        "messages": [
            {"role": "system", "content": "JSON: {}"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
        ],
        "custom_id": "a",
    }
    options.check(Settings())
    with pytest.raises(InvalidJob, match=r"messages\.0\.role"):
        InputOptions(messages=[{"role": "wizard", "content": "{a}"}]).check(Settings())


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "nothing"])
def test_a_file_without_messages_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "chat.json").write_text(text)
    with pytest.raises(BadInput, match=r"--messages .*chat.json: must be JSON, an array"):
        read_messages(tmp_path / "chat.json")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"prompt": "{a}", "prompt_column": "a"}, "--prompt and --prompt-column: each says"),
        ({"prompt": "{a}", "messages": [{"content": "{a}"}]}, "--prompt and --messages: each says"),
        ({"prompt": "Tell a tale."}, "--prompt: names no column, so all rows would be the same"),
        ({"prompt": "Tell a tale.", "id_column": "id"}, "--prompt: names no column"),
        ({"messages": [{"role": "user", "content": "Tell."}]}, "--messages: names no column"),
        ({"separator": ";;"}, "--separator ';;': must be one character such as ';', or tab"),
        ({"separator": '"'}, "--separator '\"': must be one character"),
        ({"encoding": "rot13"}, "--encoding 'rot13': no such encoding"),
        ({"encoding": "klingon"}, "--encoding 'klingon': no such encoding"),
    ],
)
def test_options_that_contradict_themselves_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        InputOptions(**options)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("in.jsonl", {"separator": ";"}, "--separator is for .csv and .tsv, not for .*in.jsonl"),
        ("in.parquet", {"encoding": "cp1252"}, "--encoding is for files of text, not for .*in.parquet"),
    ],
)
def test_options_for_other_files_are_refused(
    tmp_path: Path, name: str, options: dict[str, Any], complaint: str
) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(BadInput, match=complaint):
        rows(tmp_path / name, **options)


def test_objects_whose_names_are_no_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({f"x{n}": n, "text": "a"}) + "\n" for n in range(1000)))
    with pytest.raises(BadInput, match=r"in\.jsonl: its objects have more than 1,000 different names"):
        rows(path, prompt="{text}")


def test_half_a_character_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a", "x": "\\ud800"}\n{"text": "b", "x": "\\ud83d\\ude00"}\n')
    assert rows(path, prompt="{text}") == [
        SourceRow(1, None, "has half of a surrogate pair, which is no text"),
        SourceRow(2, {"prompt": "b"}),
    ]
