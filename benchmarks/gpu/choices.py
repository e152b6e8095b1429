"""Choices that can be switched off, so that each is measured with and without."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.step import NotHere
from llama_herd.worker.settings import WorkerSettings


@dataclass(frozen=True)
class Choice:
    """What switches a choice off: a setting, or else a call before anything is loaded."""

    setting: str = ""
    value: Any = None
    switch_off: Callable[[], None] | None = None

    @property
    def is_there(self) -> bool:
        """Whether this version of the worker has the choice at all."""
        return self.switch_off is not None or self.setting in WorkerSettings.model_fields


def _without_triton() -> None:
    """All in plain torch, as where no kernel holds."""
    from llama_herd.model.kernels.native import no_kernels
    from llama_herd.worker.loading import kernels

    kernels._triton_kernels.cache_clear()
    setattr(kernels, "load_triton_kernels", lambda needs, device: no_kernels("switched off"))  # noqa: B010


#: By the name that stands in results.
CHOICES: Mapping[str, Choice] = {
    "graphs": Choice("cuda_graphs", False),
    "overlap": Choice("overlap", False),
    "kernels": Choice(switch_off=_without_triton),
    "blocks": Choice("weights", "dense"),
    "prefixes": Choice("prefix_cache", False),
}


def switch_off(names: Collection[str]) -> dict[str, Any]:
    """Switch these choices off in this process; the settings that this takes. Raises NotHere."""
    settings = {}
    for name in names:
        choice = CHOICES[name]
        if not choice.is_there:
            raise NotHere(f"{name}: this worker has no setting {choice.setting!r} to switch it off by")
        if choice.switch_off is not None:
            choice.switch_off()
        else:
            settings[choice.setting] = choice.value
    return settings
