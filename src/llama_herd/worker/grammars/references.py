"""References in JSON schemas: each names a schema, and leads on to another place of an output.

Where one leads back to itself at the same place, JSON Schema leaves open what that means. Validators run
without end, and llguidance lets an output begin that nothing can follow.
"""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from llama_herd.worker.grammars.schema_places import Path, SchemaProblem

#: Keywords whose schemas hold at the place of the schema that they stand in.
_IN_PLACE = ("allOf", "anyOf", "oneOf")


def check_references(found: Mapping[Path, Any]) -> None:
    """Raise SchemaProblem if a reference cannot be followed, among all places of a schema."""
    known = _Known(found)
    targets = {
        path: known.targets(one["$ref"], path)
        for path, one in found.items()
        if isinstance(one, Mapping) and isinstance(one.get("$ref"), str)
    }
    ways = {path: [*targets.get(path, ())] for path in found}
    for path in found:
        if len(path) > 1 and path[-2] in _IN_PLACE and isinstance(path[-1], int):
            ways[path[:-2]].append(path)
    try:
        TopologicalSorter(ways).prepare()
    except CycleError as error:
        steps = pairwise(error.args[1])  # backwards: each place behind where it leads
        path = next(path for target, path in steps if target in targets.get(path, ()))
        raise SchemaProblem((*path, "$ref"), "is not supported: it leads back to itself") from None


class _Known:
    """The places that references may name."""

    def __init__(self, found: Mapping[Path, Any]) -> None:
        self._by_steps = {tuple(map(str, path)): path for path in found}
        self._by_name = dict[str, list[Path]]()
        for path, one in found.items():
            for name in _names(one) if isinstance(one, Mapping) else ():
                self._by_name.setdefault(name, []).append(path)

    def targets(self, reference: str, path: Path) -> list[Path]:
        """Where a reference may lead; none where llguidance has its own complaint."""
        uri, _, fragment = unquote(reference).partition("#")
        if not fragment.startswith("/"):
            return self._by_name.get(_name(uri, fragment), []) if uri or fragment else [()]
        steps = tuple(one.replace("~1", "/").replace("~0", "~") for one in fragment[1:].split("/"))
        if steps in self._by_steps:
            return [self._by_steps[steps]]
        ends = [way for known, way in self._by_steps.items() if known[-len(steps) :] == steps]
        if not ends:
            raise SchemaProblem((*path, "$ref"), "is not supported: it must name a schema, as one in $defs")
        return ends


def _names(schema: Mapping[str, Any]) -> Iterator[str]:
    """What a schema may be named by, its place aside."""
    for key in ("$id", "id"):
        if isinstance(schema.get(key), str):
            uri, _, fragment = schema[key].partition("#")
            yield _name(uri, fragment)
    if isinstance(schema.get("$anchor"), str):
        yield _name("", schema["$anchor"])


def _name(uri: str, fragment: str) -> str:
    """A name as it is compared: where another one is meant, a reference is rather followed too often."""
    return f"#{fragment}" if fragment else uri.rpartition("/")[2]
