"""The file that the calls of a benchmark add up in: each call with its conditions and its measurements."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.measurement import Measurement
from llama_herd.errors import BadInput


@dataclass(frozen=True)
class Call:
    """One run of the program."""

    scale: str
    conditions: dict[str, Any]
    ceilings: Ceilings
    measurements: list[Measurement] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "conditions": self.conditions,
            "ceilings": asdict(self.ceilings),
            "measurements": [measurement.to_json() for measurement in self.measurements],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        measurements = [Measurement.from_json(entry) for entry in fields["measurements"]]
        return cls(fields["scale"], fields["conditions"], Ceilings(**fields["ceilings"]), measurements)


@dataclass(frozen=True)
class Results:
    """All calls of a file, the oldest first."""

    path: Path
    calls: list[Call]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The calls in a file; none if it is not there."""
        calls = json.loads(path.read_text())["calls"] if path.exists() else []
        return cls(path, [Call.from_json(call) for call in calls])

    def begin(self, scale: str, conditions: dict[str, Any], ceilings: Ceilings) -> Call:
        """Add a call. Raises BadInput when the file holds calls of another scale."""
        if self.calls and self.calls[0].scale != scale:
            held = self.calls[0].scale
            raise BadInput(f"{self.path} holds results of {held}, these are of {scale}. Fix: another file")
        self.calls.append(Call(scale, conditions, ceilings))
        return self.calls[-1]

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"benchmark": "gpu", "calls": [call.to_json() for call in self.calls]}, indent=2)
        self.path.write_text(text + "\n")

    @property
    def latest(self) -> list[Measurement]:
        """The last measurement of each system in each case, workload by workload."""
        found = {(m.workload, m.case, m.system): m for call in self.calls for m in call.measurements}
        return sorted(found.values(), key=lambda m: (m.workload, m.case))

    def value(self, workload: str, system: str) -> float | None:
        """The last value that a system had in a workload."""
        values = [m.value for m in self.latest if (m.workload, m.system) == (workload, system)]
        return values[-1] if values else None
