"""Opens a file as the right kind of source."""

from pathlib import Path

from llama_herd.errors import BadInput
from llama_herd.worker.batch.json_lines import JsonLines, StandardInput
from llama_herd.worker.batch.source import STDIN, Source
from llama_herd.worker.batch.tables import Columns, CsvTable, ParquetTable


def open_source(name: str, columns: Columns) -> Source:
    """The rows of a file, whose suffix tells its format; - is standard input. Raises BadInput."""
    if name == STDIN:
        return StandardInput()
    path = Path(name)
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    match Path(name.removesuffix(".gz")).suffix:
        case ".csv":
            return CsvTable(path, columns)
        case ".parquet":
            return ParquetTable(path, columns)
        case _:
            return JsonLines(name)
