"""The formats of a run's answers: OpenAI's lines, and the tables and files of vectors made of these."""

from enum import StrEnum
from pathlib import Path

from llama_herd.errors import BadInput


class OutputFormat(StrEnum):
    """`openai` is written row by row as rows end; the others are made of such lines at the end of the run."""

    OPENAI = "openai"
    FLAT = "flat"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    NPY = "npy"

    @classmethod
    def from_suffix(cls, output: Path) -> "OutputFormat":
        """The format that a file's suffix names. Raises BadInput."""
        match output.suffix:
            case ".jsonl" | ".ndjson":
                return cls.OPENAI
            case ".csv" | ".tsv" | ".parquet" | ".npy" as suffix:
                return cls(suffix[1:])
            case suffix:
                raise BadInput(
                    f"-o {output}: its suffix {suffix!r} names no format. "
                    "Fix: end it with .jsonl, .csv, .tsv, .parquet or, for vectors, .npy; or say --format"
                )
