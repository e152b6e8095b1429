"""Choices that can be switched off, so that each is measured with and without."""

from collections.abc import Iterable, Mapping
from typing import Any

#: The setting that switches one off, by the name that stands in results.
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "graphs": {"graphs": "uncaptured"},
    "overlap": {"graphs": "off"},
    "kernels": {"triton": "off"},
    "blocks": {"weights": "dense"},
    "learning": {"prefill_tokens": 1024},
    "prefixes": {"prefix_cache": False},
}


def switched_off(names: Iterable[str]) -> dict[str, Any]:
    """The settings that switch these choices off."""
    return {setting: value for name in names for setting, value in CHOICES[name].items()}
