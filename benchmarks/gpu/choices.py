"""Choices that can be switched off, so that each is measured with and without."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from benchmarks.gpu.step import NotHere
from llama_herd.worker.settings import WorkerSettings


class Choice(NamedTuple):
    """The setting that switches it off, and its value then."""

    setting: str
    value: Any


#: By the name that stands in results.
CHOICES: Mapping[str, Choice] = {
    "graphs": Choice("graphs", "uncaptured"),
    "overlap": Choice("graphs", "off"),
    "kernels": Choice("triton", "off"),
    "blocks": Choice("weights", "dense"),
    "prefixes": Choice("prefix_cache", False),
}


def switched_off(names: Collection[str]) -> dict[str, Any]:
    """The settings that switch these choices off. Raises NotHere."""
    chosen = [CHOICES[name] for name in names]
    for setting, _ in chosen:
        if setting not in WorkerSettings.model_fields:
            raise NotHere(f"this worker has no setting {setting!r} to switch anything off by")
    return dict(chosen)
