"""References in schemas: where they lead."""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from llama_herd.worker.grammars.schema_places import Path, SchemaProblem

#: Keywords whose schemas hold at the place of the schema that they stand in.
_IN_PLACE = ("allOf", "anyOf", "oneOf")


class References:
    """The places of a schema, by what references call them."""

    def __init__(self, found: Mapping[Path, Any]) -> None:
        self.found = found
        self._by_steps = {tuple(map(str, path)): path for path in found}
        self._by_name = dict[str, list[Path]]()
        for path, one in found.items():
            for name in _names(one) if isinstance(one, Mapping) else ():
                self._by_name.setdefault(name, []).append(path)

    def check(self) -> None:
        """Raise SchemaProblem if a reference cannot be followed."""
        targets = {
            path: self.targets(one["$ref"], path)
            for path, one in self.found.items()
            if isinstance(one, Mapping) and isinstance(one.get("$ref"), str)
        }
        ways = {path: [*targets.get(path, ())] for path in self.found}
        for path in self.found:
            if len(path) > 1 and path[-2] in _IN_PLACE and isinstance(path[-1], int):
                ways[path[:-2]].append(path)
        try:
            TopologicalSorter(ways).prepare()
        except CycleError as error:
            steps = pairwise(error.args[1])  # backwards: each place behind where it leads
            path = next(path for target, path in steps if target in targets.get(path, ()))
            raise SchemaProblem((*path, "$ref"), "is not supported: it leads back to itself") from None

    def targets(self, reference: str, path: Path) -> list[Path]:
        """Where a reference may lead. Raises SchemaProblem if that is nowhere."""
        uri, _, fragment = unquote(reference).partition("#")
        steps = tuple(one.replace("~1", "/").replace("~0", "~") for one in fragment[1:].split("/"))
        if not uri and not fragment:
            ends: list[Path] = [()]
        elif not fragment.startswith("/"):
            ends = self._by_name.get(_name(uri, fragment), [])
        elif steps in self._by_steps:
            ends = [self._by_steps[steps]]
        else:
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
