"""The JSON and text files of a model's folder, read with limits on their bytes, values and nesting."""

import json
import re
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.metadata import Metadata

#: Lists and objects within each other. A tokenizer.json has eight, a config.json four.
MAX_DEPTH = 32
#: Most lists, objects and values in them: the smallest take 30 times their bytes. Gemma's tokenizer.json has
#: two million.
MAX_VALUES = 4 << 20

#: One of the two escapes that together are a character; alone it is none.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")

_FETCH = "Fetch it again."


def read_json(path: Path, max_bytes: int) -> Metadata:
    """A file's keys. Raises ModelFileError when it is no object or cannot be read."""
    values = parse_json(read_text(path, max_bytes), str(path))
    if not isinstance(values, dict):
        raise ModelFileError(f"{path}: holds a {type(values).__name__}, an object is needed. {_FETCH}")
    return Metadata(values, str(path))


def parse_json(
    content: str,
    source: str,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], object] | None = None,
) -> Any:
    """The value of a JSON text. Raises ModelFileError, which names `source`: no JSON, or over a limit."""
    if sum(map(content.count, ",[{")) > MAX_VALUES:
        raise ModelFileError(f"{source}: holds over {MAX_VALUES} values, which is the limit. {_FETCH}")
    too_deep = ModelFileError(f"{source}: nested more than {MAX_DEPTH} deep, which is the limit. {_FETCH}")
    try:
        value = json.loads(content, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:
        raise ModelFileError(f"{source}: not JSON: {error}. {_FETCH}") from error
    if _is_too_deep(value):
        raise too_deep
    if _HALF.search(content) and not _is_text(value):
        raise ModelFileError(f"{source}: holds a lone surrogate, which is no character. {_FETCH}")
    return value


def read_text(path: Path, max_bytes: int) -> str:
    """A file of UTF-8 text. Raises ModelFileError when it is none or cannot be read."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ModelFileError(f"{path}: not a regular file. {_FETCH}")
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}. {_FETCH}") from error
    if len(content) > max_bytes:
        raise ModelFileError(f"{path}: longer than the limit of {max_bytes} bytes. {_FETCH}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: not UTF-8 at byte {error.start}. {_FETCH}") from error


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        held = chain.from_iterable(map(_values, level))
        level = [inner for inner in held if type(inner) is list or type(inner) is dict]
        if not level:
            return False
    return True


def _is_text(value: object) -> bool:
    """Whether all strings of a JSON value can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _values(value: object) -> Iterable[object]:
    """The values in a JSON list or object."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
