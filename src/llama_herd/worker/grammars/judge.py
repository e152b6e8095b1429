"""Makes grammars of forms and judges them: the program `python -m llama_herd.worker.grammars.judge FD`.

What jobs bring can take time and memory without end. So it is tried here first, where the kernel sets limits.
A request is a form's kind and its text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher, grammar_from

from llama_herd.model.text.helper import Answer, serve

#: How JSON is written: with little white space, since a model may draw it without end, and as schemas say,
#: whatever a schema's own `x-guidance` wants.
JSON_OPTIONS: Any = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n[ \t]{0,24}",
    "coerce_one_of": False,
    "lenient": False,
}

#: What the engine says of keywords that it does not know.
_UNKNOWN = re.compile(r"Unimplemented keys: (\[.*\])")
_FORMAT = re.compile(r"Unknown format: (.*)")
_NAME = re.compile(r"\$?[A-Za-z0-9_]{1,64}")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|/.*/")
MAX_REASON_CHARS = 200

#: To a value in a schema.
Path = tuple[str | int, ...]


def judged(kind: str, text: str) -> Answer:
    """The grammar of a form as llguidance reads it; or why there is none, by the path in a schema."""
    try:
        grammar = _grammar(kind, text)
    except (ValueError, RecursionError) as error:
        return Answer("failed", _reason(str(error)))
    complaint = LLMatcher.validate_grammar(grammar)
    if not complaint:
        return Answer("text", grammar)
    return Answer("failed", _schema_reason(complaint, text) if kind == "json" else _reason(complaint))


def _grammar(kind: str, text: str) -> str:
    if kind == "json":
        return LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    return grammar_from("choice" if kind == "choice" else "grammar", text)


def _schema_reason(complaint: str, text: str) -> str:
    """What is wrong with a schema, with the place of the first keyword that is not supported."""
    places = _places(json.loads(text))
    if found := _UNKNOWN.search(complaint):
        unknown = set(json.loads(found[1]))
        return _named(path for path, _ in places if path and path[-1] in unknown)
    if found := _FORMAT.search(complaint):
        return _named(path for path, value in places if path[-1:] == ("format",) and value == found[1])
    if complaint.startswith("oneOf"):
        return _named(path for path, _ in places if path[-1:] == ("oneOf",))
    return _reason(complaint.partition(": ")[0])


def _named(paths: Iterator[Path]) -> str:
    parts = [str(part) if _NAME.fullmatch(str(part)) else "?" for part in next(paths, ())]
    return f"{'.'.join(parts) or 'a keyword'} is not supported"


def _places(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """All values of a schema, with their paths."""
    yield path, value
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _places(one, (*path, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _places(one, (*path, number))


def _reason(complaint: str) -> str:
    """What the engine says, without what it quotes of the job."""
    lines = [line for line in complaint.splitlines() if line and not line.startswith((" ", "\t"))]
    lines = [_QUOTED.sub("...", line) for line in lines if not re.match(r"\d+ \|", line)]
    return "; ".join(lines)[:MAX_REASON_CHARS] or "cannot be read"


if __name__ == "__main__":
    serve(lambda limits: judged)
