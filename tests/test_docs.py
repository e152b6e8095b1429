"""The page of the Python client names all that the package exports, and nothing else."""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import llama_herd

NAMES = re.findall(r"^::: (\S+)$", (Path(__file__).parent.parent / "docs" / "api.md").read_text(), re.M)


def found(name: str) -> object:
    """A module, or a name of one."""
    home, _, last = name.rpartition(".")
    own = getattr(import_module(home), last, None)
    return import_module(name) if own is None else own


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_is_there(name: str) -> None:
    assert getattr(found(name), "__doc__", None)


def test_every_exported_name_is_on_the_page() -> None:
    things = [found(name) for name in NAMES]
    homes = [thing for thing in things if isinstance(thing, ModuleType)]
    missing = [
        name
        for name in llama_herd.__all__
        if (own := getattr(llama_herd, name)) not in things
        and not any(getattr(home, name, None) is own for home in homes)
    ]
    assert missing == []
