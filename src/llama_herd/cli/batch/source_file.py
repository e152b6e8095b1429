"""Opens a file as the right kind of source."""

from pathlib import Path

from llama_herd.cli.batch.json_array import JsonArray
from llama_herd.cli.batch.line_files import JsonLines, TextLines
from llama_herd.cli.batch.source import STDIN, Source, open_unpacked
from llama_herd.cli.batch.standard_input import StandardInput
from llama_herd.cli.batch.tables import CsvTable, ParquetTable, RowColumns
from llama_herd.errors import BadInput

#: What tells a file's format.
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".txt", ".csv", ".tsv", ".parquet")


def open_source(name: str, columns: RowColumns) -> Source:
    """The rows of a file, whose suffix tells its format; - is standard input. Raises BadInput."""
    if name == STDIN:
        return StandardInput()
    path = Path(name)
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    match Path(name.removesuffix(".gz")).suffix:
        case ".jsonl" | ".ndjson":
            return JsonLines(name)
        case ".json":
            return JsonArray(name) if _begins_as_array(name) else JsonLines(name)
        case ".txt":
            return TextLines(name)
        case ".csv":
            return CsvTable(path, columns)
        case ".tsv":
            return CsvTable(path, columns, "\t")
        case ".parquet":
            return ParquetTable(path, columns)
        case suffix:
            raise BadInput(
                f"{path}: its suffix {suffix!r} names no format. Fix: rename it to what it is, one of "
                f"{', '.join(_SUFFIXES)}, also with .gz"
            )


def _begins_as_array(name: str) -> bool:
    with open_unpacked(name) as stream:
        return stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
