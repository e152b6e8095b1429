"""Tables in, tables out: every column, in every format and of every type, comes out as it went in."""

import csv
import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings, strategies as some
from pyarrow.parquet import read_table, write_table

from llama_herd.cli.batch.cell_kind import CellKind
from llama_herd.cli.batch.files import BatchFiles
from llama_herd.cli.batch.row_template import cell_text
from llama_herd.errors import BadInput
from llama_herd.tasks.settings import Settings
from tests.cli.batch.table_run import OURS, Row, answered, item, plan, read

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
NUMBERS = count()

#: Texts of a CSV file: any character, but no half of a surrogate pair.
texts = some.text(some.characters(exclude_categories=["Cs"]), max_size=8)
names = some.lists(texts | some.sampled_from(OURS), unique=True, max_size=4).map(
    lambda found: ["prompt", *(name for name in found if name != "prompt")]
)
#: Values of JSON, with whole numbers beyond those of a double and of Parquet.
whole = some.integers() | some.integers(2**53, 2**70)
scalars = some.none() | some.booleans() | whole | some.floats(allow_nan=False, allow_infinity=False) | texts
values = some.recursive(
    scalars, lambda inner: some.lists(inner, max_size=2) | some.dictionaries(texts, inner, max_size=2)
)
#: Columns of one sort are what files have most.
cells = some.sampled_from([some.booleans(), some.integers(-9, 9), whole, texts, some.floats(-1, 1), values])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def paths(folder: Path, source: str, output: str) -> tuple[Path, Path]:
    """Files of an example of its own."""
    number = next(NUMBERS)
    return folder / f"in-{number}{source}", folder / f"out-{number}{output}"


@settings(max_examples=60, deadline=None)
@given(names, some.data(), some.sampled_from([".csv", ".tsv"]), some.sampled_from(TABLES))
def test_columns_of_text_come_out_as_they_went_in(
    folder: Path, columns: list[str], data: some.DataObject, suffix: str, end: str
) -> None:
    row = some.tuples(some.just("tell"), *[texts] * (len(columns) - 1))
    drawn = data.draw(some.lists(row, max_size=3))
    source, output = paths(folder, suffix, end)
    with source.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",").writerows([columns, *drawn])
    files = answered(plan(source, output))
    assert files.layout is not None
    found = read(output)
    assert [[row[files.layout.kept[name]] for name in columns] for row in found] == [*map(list, drawn)]
    assert all(row["text"] == "fine" for row in found)


@settings(max_examples=80, deadline=None)
@given(some.data(), some.sampled_from([".jsonl", ".json"]), some.sampled_from([".jsonl", ".parquet"]))
def test_values_of_json_come_out_as_they_went_in(
    folder: Path, data: some.DataObject, suffix: str, end: str
) -> None:
    columns = data.draw(names.map(lambda found: {name: data.draw(cells) for name in found[1:]}))
    row = some.fixed_dictionaries({"prompt": some.just("tell")}, optional=columns)
    drawn: list[Row] = data.draw(some.lists(row, max_size=3))
    source, output = paths(folder, suffix, end)
    lines = [json.dumps(one) for one in drawn]
    source.write_text(f"[{','.join(lines)}]" if suffix == ".json" else "".join(f"{one}\n" for one in lines))
    files = answered(plan(source, output, prompt="Now {prompt}"))
    assert files.layout is not None
    kinds = files.layout.table.kinds if files.layout.table else {}
    found = read(output)
    for mine, theirs in zip(drawn, found, strict=True):
        for name, new in files.layout.kept.items():
            cell = theirs[new]
            if end == ".parquet" and kinds[name] is CellKind.JSON and cell is not None:
                cell = json.loads(cell)
            value = mine.get(name)
            if end == ".parquet" and kinds[name] is CellKind.NUMBER and value is not None:
                assert value == cell
                value = float(value)
            assert repr(cell) == repr(value)


#: A column of each type that pyarrow has, by the name of its id.
COLUMNS: dict[str, list[pyarrow.Array]] = {
    "NA": [pyarrow.nulls(2)],
    "BOOL": [pyarrow.array([True, None])],
    **{
        name: [pyarrow.array([1, None], pyarrow.type_for_alias(name.lower()))]
        for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
    },
    "HALF_FLOAT": [pyarrow.array([1.5, None], pyarrow.float16())],
    "FLOAT": [pyarrow.array([0.1, float("nan")], pyarrow.float32())],
    "DOUBLE": [pyarrow.array([1e300, None])],
    "STRING": [pyarrow.array(["ä\n", None])],
    "LARGE_STRING": [pyarrow.array(["a", None], pyarrow.large_string())],
    "STRING_VIEW": [pyarrow.array(["a", None], pyarrow.string_view())],
    "BINARY": [pyarrow.array([b"\xff", None])],
    "LARGE_BINARY": [pyarrow.array([b"\xff", None], pyarrow.large_binary())],
    "BINARY_VIEW": [pyarrow.array([b"\xff", None], pyarrow.binary_view())],
    "FIXED_SIZE_BINARY": [
        pyarrow.array([b"\xff\0", None], pyarrow.binary(2)),
        pyarrow.array([bytes(16), None], pyarrow.uuid()),
    ],
    **{
        f"DECIMAL{bits}": [pyarrow.array([Decimal("1.25"), None], type)]
        for bits, type in {
            32: pyarrow.decimal32(5, 2),
            64: pyarrow.decimal64(5, 2),
            128: pyarrow.decimal128(5, 2),
            256: pyarrow.decimal256(5, 2),
        }.items()
    },
    "DATE32": [pyarrow.array([date(2024, 2, 29), None])],
    "DATE64": [pyarrow.array([date(2024, 2, 29), None], pyarrow.date64())],
    "TIME32": [pyarrow.array([time(1, 2, 3), None], pyarrow.time32("ms"))],
    "TIME64": [pyarrow.array([1, None], pyarrow.time64("ns"))],
    "TIMESTAMP": [
        pyarrow.array([1, None], pyarrow.timestamp("ns")),
        pyarrow.array([datetime(2024, 1, 1, tzinfo=UTC), None], pyarrow.timestamp("us", "+01:00")),
        pyarrow.array([0, None], pyarrow.timestamp("ms", "Mars/Base")),
    ],
    "DURATION": [pyarrow.array([timedelta(seconds=1), None])],
    "INTERVAL_MONTH_DAY_NANO": [pyarrow.array([(1, 2, 3), None], pyarrow.month_day_nano_interval())],
    "LIST": [pyarrow.array([[1], None]), pyarrow.array([[b"\xff"], None])],
    "LARGE_LIST": [pyarrow.array([["a"], None], pyarrow.large_list(pyarrow.string()))],
    "FIXED_SIZE_LIST": [pyarrow.array([[1, 2], None], pyarrow.list_(pyarrow.int8(), 2))],
    "LIST_VIEW": [pyarrow.array([[1], None], pyarrow.list_view(pyarrow.int8()))],
    "LARGE_LIST_VIEW": [pyarrow.array([[1], None], pyarrow.large_list_view(pyarrow.int8()))],
    "STRUCT": [
        pyarrow.array([{"a": 1, "b": {"c": datetime(2024, 1, 1)}}, None]),
        pyarrow.StructArray.from_arrays([pyarrow.array([1, 2]), pyarrow.array([3, 4])], ["a", "a"]),
    ],
    "MAP": [pyarrow.array([[("k", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int8()))],
    "DICTIONARY": [pyarrow.array(["a", None]).dictionary_encode()],
    "RUN_END_ENCODED": [pyarrow.RunEndEncodedArray.from_arrays([2], pyarrow.array(["a"]))],
    "SPARSE_UNION": [pyarrow.UnionArray.from_sparse(pyarrow.array([0, 0], "int8"), [pyarrow.array([1, 2])])],
    "DENSE_UNION": [
        pyarrow.UnionArray.from_dense(
            pyarrow.array([0, 0], "int8"), pyarrow.array([0, 1], "int32"), [pyarrow.array([1, 2])]
        )
    ],
}
#: Types of Arrow that pyarrow has ids of, but makes none.
UNMADE = {"INTERVAL_DAY_TIME", "INTERVAL_MONTHS"}
#: What each is in JSON; not those that are refused there.
AS_JSON = {
    "NA": None,
    "BOOL": True,
    "HALF_FLOAT": 1.5,
    "FLOAT": 0.10000000149011612,
    "DOUBLE": 1e300,
    **dict.fromkeys(["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"], 1),
    "STRING": "ä\n",
    "LARGE_STRING": "a",
    "STRING_VIEW": "a",
    "DICTIONARY": "a",
    **dict.fromkeys(["DECIMAL32", "DECIMAL64", "DECIMAL128", "DECIMAL256"], "1.25"),
    "DATE32": "2024-02-29",
    "DATE64": "2024-02-29",
    "TIME32": "01:02:03.000",
    "TIME64": "00:00:00.000000001",
    "LIST": [1],
    "LARGE_LIST": ["a"],
    "FIXED_SIZE_LIST": [1, 2],
    "LIST_VIEW": [1],
    "LARGE_LIST_VIEW": [1],
    "TIMESTAMP": "1970-01-01 00:00:00.000000001",
    "STRUCT": {"a": 1, "b": {"c": "2024-01-01 00:00:00.000000"}},
    "MAP": [["k", 1]],
}


#: Examples of these that have bytes within, a name twice, or a zone that nobody knows.
REFUSED = {("LIST", 1), ("STRUCT", 1), ("TIMESTAMP", 2)}


def parquet(source: Path, column: pyarrow.Array, rows: int = 2) -> bool:
    """Write a table with this column; False: Parquet holds no such."""
    prompts = pyarrow.array([f"tale {number}" for number in range(rows)])
    try:
        write_table(pyarrow.table({"prompt": prompts, "mine": column}), source)
    except (pyarrow.ArrowException, NotImplementedError):
        return False
    return True


def test_the_columns_of_the_test_are_all_types_of_pyarrow() -> None:
    known = {name.removeprefix("Type_") for name in dir(pyarrow.lib) if name.startswith("Type_")}
    assert known == COLUMNS.keys() | UNMADE


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, c in COLUMNS.items() for n in range(len(c))]
)
def test_every_type_passes_through_parquet_as_it_is(tmp_path: Path, name: str, number: int) -> None:
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    if not parquet(source, COLUMNS[name][number]):
        return  # so no input has it
    answered(plan(source, output))
    assert text_of(output) == text_of(source)
    assert read_table(output).schema.field("mine").equals(read_table(source).schema.field("mine"), True)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, c in COLUMNS.items() for n in range(len(c))]
)
def test_every_type_becomes_text_or_is_refused_by_name_before_a_file_is_made(
    tmp_path: Path, name: str, number: int, suffix: str
) -> None:
    source, output = tmp_path / "in.parquet", tmp_path / f"out{suffix}"
    if not parquet(source, COLUMNS[name][number]):
        return
    asked = plan(source, output)
    if name in AS_JSON and (name, number) not in REFUSED:
        answered(asked)
        value, cell = AS_JSON[name], read(output)[0]["mine"]
        texts = "" if value is None else cell_text(value)
        assert number or cell == (value if suffix == ".jsonl" else texts)
        return
    type = re.escape(str(read_table(source)["mine"].type))
    with pytest.raises(BadInput, match=f"cannot have the column mine, since {type} has no .* --drop mine"):
        answered(asked)
    assert list(tmp_path.iterdir()) == [source]
    answered(replace(asked, dropped=("mine",)))
    assert "mine" not in read(output)[0]


def text_of(path: Path) -> str:
    """The cells of a column as pyarrow shows them, in which NaN equals itself."""
    return str(read_table(path)["mine"].combine_chunks().to_string())


def test_each_input_row_stays_in_its_place_beside_rows_that_are_bad(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.parquet"
    source.write_text("id,text\n1,one\n2,two,more\n\n3\n4,\n5,five\n")
    answered(plan(source, output, prompt="{text}", id_column="id"))
    found = read(output)
    assert [(row["line"], row["id"], row["input_text"], row["text"]) for row in found] == [
        (2, "1", "one", "fine"),
        (3, None, None, None),
        (5, None, None, None),
        (6, "4", "", None),
        (7, "5", "five", "fine"),
    ]
    assert [row["error"] for row in found] == [
        None,
        "invalid_line: line: has 3 cells, but the first line names 2 columns",
        "invalid_line: line: has 1 cell, but the first line names 2 columns",
        "invalid_line: prompt: must not be empty",
        None,
    ]


def test_outputs_of_several_batches_of_rows_keep_theirs(tmp_path: Path) -> None:
    """More rows than are read at once, in row groups of other sizes, and some without an answer."""
    source, output, num = tmp_path / "in.parquet", tmp_path / "out.parquet", 2500
    prompts = [None if n % 7 == 3 else f"tale {n}" for n in range(num)]
    kind = pyarrow.array([f"k{n // 900}" for n in range(num)]).dictionary_encode()
    write_table(pyarrow.table({"prompt": prompts, "n": range(num), "kind": kind}), source, row_group_size=700)
    answered(plan(source, output), lambda row: f"about {row.index}")
    found = read(output)
    assert [row["n"] for row in found] == list(range(num))
    assert [row["kind"] for row in found] == kind.to_pylist()
    assert [row["text"] for row in found] == [
        None if prompt is None else f"about {n}" for n, prompt in enumerate(prompts, 1)
    ]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_dropped_column_is_left_out_and_may_be_there_twice(tmp_path: Path, suffix: str) -> None:
    source, output = tmp_path / f"in{suffix}", tmp_path / "out.csv"
    if suffix == ".csv":
        source.write_text("prompt,n,x,x\na,1,2,3\n")
    else:
        arrays = [pyarrow.array([cell]) for cell in ("a", "1", "2", "3")]
        write_table(pyarrow.Table.from_arrays(arrays, names=["prompt", "n", "x", "x"]), source)
    with pytest.raises(BadInput, match=r"has 2 columns x\. Fix: .* or leave them out by --drop x"):
        answered(plan(source, output))
    with pytest.raises(BadInput, match=r"has no column y, which --drop names; its columns are: prompt, n, x"):
        answered(plan(source, output, dropped=("y",)))
    answered(plan(source, output, dropped=("x",)))
    assert list(read(output)[0]) == ["prompt", "n", *OURS]
    for end in TABLES:
        none = tmp_path / f"none{end}"
        answered(plan(source, none, dropped=("x", "n", "prompt")))
        assert list(read(none)[0]) == OURS


def test_a_file_with_other_rows_than_before_is_told(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("prompt\na\nb\n")
    with BatchFiles(plan(source, output)) as files:
        files.write([item(row, lambda row: "fine") for row in files.rows(Settings()) if row])
        source.write_text("prompt\na\n\n\n")
        with pytest.raises(BadInput, match=r"in\.csv has no row 3 any more, which was run"):
            files.write_table()
    assert not output.exists()
    assert not Path(f"{output}.new").exists()


def test_numbers_that_json_has_not_are_null_there(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    write_table(pyarrow.table({"prompt": ["a"], "x": [float("nan")], "y": [[float("inf"), 1.0]]}), source)
    answered(plan(source, tmp_path / "out.jsonl"))
    (row,) = read(tmp_path / "out.jsonl")
    assert (row["x"], row["y"]) == (None, [None, 1.0])


def test_a_text_that_is_no_text_is_told_with_its_column(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    ends = pyarrow.array([0, 1], "int32").buffers()[1]
    column = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, ends, pyarrow.py_buffer(b"\xff")])
    assert parquet(source, column, rows=1)
    with pytest.raises(
        BadInput, match=r"the column mine has a value that has no form as text: .* --drop mine"
    ):
        answered(plan(source, tmp_path / "out.csv"))
    answered(plan(source, tmp_path / "out.csv", dropped=("mine",)))
    answered(plan(source, tmp_path / "out.parquet"))
