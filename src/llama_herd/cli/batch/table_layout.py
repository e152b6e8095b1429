"""The columns of a table of answers: the input's, ours, and a schema's fields, no two of one name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from llama_herd.cli.batch.cell_kind import CellKind
from llama_herd.cli.batch.schema_columns import SchemaColumn
from llama_herd.cli.batch.tables import Table

#: Our columns and their kinds: `own_columns` says which of them a table has.
OWN: Mapping[str, CellKind] = {
    "custom_id": CellKind.TEXT,
    "line": CellKind.INTEGER,
    "choice": CellKind.INTEGER,
    "prompt": CellKind.TEXT,
    "vector": CellKind.VECTOR,
    "text": CellKind.TEXT,
    "reasoning": CellKind.TEXT,
    "tool_calls": CellKind.TEXT,
    "finish_reason": CellKind.TEXT,
    "model": CellKind.TEXT,
    "prompt_tokens": CellKind.INTEGER,
    "completion_tokens": CellKind.INTEGER,
    "error": CellKind.TEXT,
}


#: Those of a row that is a text.
_OF_VECTORS = ("custom_id", "line", "prompt", "vector", "model", "error")


def own_columns(*, embeds: bool, has_prompts: bool) -> list[str]:
    """Our columns in a table of vectors, or of texts."""
    names = _OF_VECTORS if embeds else [name for name in OWN if name != "vector"]
    return [name for name in names if has_prompts or name != "prompt"]


@dataclass(frozen=True)
class TableLayout:
    """The columns of an output, in this order: those of the input, ours, the schema's.

    kept: the input's columns by their names there, with those in the output. fields: the schema's by the
    names in the output. vector_width: numbers of each vector; 0 where a row has none, since pyarrow before 26
    reads no null among lists of a fixed size.
    """

    table: Table | None
    kept: Mapping[str, str]
    own: Sequence[str]
    fields: Mapping[str, SchemaColumn]
    vector_width: int = 0

    @classmethod
    def make(
        cls, table: Table | None, kept: Sequence[str], fields: Sequence[SchemaColumn], own: Sequence[str]
    ) -> Self:
        """Ours keep their names, then the schema's do; others of these names get a prefix."""
        names = _free_names([field.name for field in fields], own, "answer_")
        theirs = {names[field.name]: field for field in fields}
        return cls(table if kept else None, _free_names(kept, [*own, *theirs], "input_"), own, theirs)

    @property
    def columns(self) -> list[str]:
        return [*self.kept.values(), *self.own, *self.fields]

    @property
    def renamed(self) -> list[str]:
        """What a person should know of names, a sentence each."""
        theirs = {field.name: name for name, field in self.fields.items()}
        pairs = [("input's column", *pair) for pair in self.kept.items()]
        pairs += [("schema's field", *pair) for pair in theirs.items()]
        return [f"the {whose} {old} is {new} in the output" for whose, old, new in pairs if old != new]


def _free_names(names: Sequence[str], taken: Collection[str], prefix: str) -> dict[str, str]:
    """Names that differ from each other and from those taken: a prefix, or several, stands before such."""
    in_use = {*taken, *names}
    found = {}
    for name in names:
        new = name
        if name in taken:
            while new in in_use:
                new = prefix + new
            in_use.add(new)
        found[name] = new
    return found
