"""The settings under which files are looked at."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Fields of WorkerSettings that are not the default."""

    name: str
    fields: dict[str, Any]

    @property
    def variables(self) -> dict[str, str]:
        """The same for the environment of a command."""
        return {f"HERD_{name.upper()}": str(value) for name, value in self.fields.items()}


DEFAULTS = Setting("defaults", {})
BEFORE = Setting("as before", {"weights": "dense", "dtype": "float32", "threads": 1, "prefill_tokens": 16})
SETTINGS = (
    DEFAULTS,
    Setting("in blocks", {"weights": "quantized"}),
    Setting("dense", {"weights": "dense"}),
    BEFORE,
)
