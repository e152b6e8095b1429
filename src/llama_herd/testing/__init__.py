"""Tests of a service that asks a herd, without torch and without a model.

from llama_herd.testing import Answer, FakeHerd
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` makes them public for type checkers
    from llama_herd.testing.answer import Answer as Answer, Call as Call
    from llama_herd.testing.fake_herd import FakeHerd as FakeHerd
    from llama_herd.testing.script import AskedJob as AskedJob, Script as Script

_HOMES = {
    "Answer": "answer",
    "AskedJob": "script",
    "Call": "answer",
    "FakeHerd": "fake_herd",
    "Script": "script",
}

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
