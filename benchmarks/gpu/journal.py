"""The journal of a run: JSON lines, each written as soon as it is known, by any of its processes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.measurement import Measurement

if TYPE_CHECKING:  # it imports torch, which takes a step that needs none seconds
    from benchmarks.gpu.ceilings import Ceilings

NAME = "results.jsonl"


@dataclass(frozen=True)
class Journal:
    """The results of one run, in its folder.

    Each entry has a `kind`: conditions, ceilings, measurement, fact, or end (of a step). A line that is no
    entry was written by a step that failed, and is passed over.
    """

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / NAME

    def add(self, kind: str, **fields: Any) -> None:
        """Append an entry; what stands in the file before it may lack its end of line."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"kind": kind, **fields}, default=str)
        with self.path.open("a") as file:
            file.write(("" if self._ends_with_a_line else "\n") + line + "\n")

    def note(self, step: str, measurement: Measurement) -> None:
        self.add("measurement", step=step, **measurement.to_json())

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """All entries of a kind, without their kind."""
        if not self.path.exists():
            return []
        found = [_entry(line) for line in self.path.read_text(errors="replace").splitlines()]
        return [one for one in found if one.pop("kind", None) == kind]

    @property
    def measurements(self) -> list[Measurement]:
        return [Measurement.from_json(entry) for entry in self.entries("measurement")]

    @property
    def ceilings(self) -> "Ceilings | None":
        """The last that were measured."""
        from benchmarks.gpu.ceilings import Ceilings

        found = self.entries("ceilings")
        return Ceilings(**{name: found[-1][name] for name in Ceilings.__annotations__}) if found else None

    def note_ceilings(self, ceilings: "Ceilings") -> None:
        self.add("ceilings", **asdict(ceilings))

    @property
    def ends(self) -> dict[str, str]:
        """How each step ended, by its name."""
        return {entry["step"]: entry["outcome"] for entry in self.entries("end")}

    @property
    def _ends_with_a_line(self) -> bool:
        if not self.path.exists() or not self.path.stat().st_size:
            return True
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"


def _entry(line: str) -> dict[str, Any]:
    """What a line says; nothing if it is no entry."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
