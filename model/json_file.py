"""The JSON and text files of a model's folder, read with a limit."""

import json
from pathlib import Path

from llama_herd.errors import ModelFileError
from llama_herd.model.metadata import Metadata


def read_json(path: Path, max_bytes: int) -> Metadata:
    """A file's keys, without the null ones. Raises ModelFileError when it is no object or cannot be read."""
    content = _read(path, max_bytes)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON: {error}. Fetch it again.") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{path}: holds a {type(values).__name__}, an object is needed. Fetch it again.")
    return Metadata({key: value for key, value in values.items() if value is not None}, str(path))


def read_text(path: Path, max_bytes: int) -> str:
    """A file of UTF-8 text. Raises ModelFileError when it is none or cannot be read."""
    content = _read(path, max_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: not UTF-8 at byte {error.start}. Fetch it again.") from error


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}. Fetch it again.") from error
    if len(content) > max_bytes:
        raise ModelFileError(f"{path}: longer than the limit of {max_bytes} bytes. Fetch it again.")
    return content
