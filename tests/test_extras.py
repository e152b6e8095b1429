"""The fix for a package that is missing adds to this installation, a checkout or a wheel."""

import json
from pathlib import Path
from typing import Any

import pytest

from llama_herd import extras
from llama_herd.extras import install_command


class Installed:
    """What pip has noted of an installation; None: nothing, as it came from an index."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._origin is None else json.dumps(self._origin)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "my herd"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    return folder


def command(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> str:
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(origin))
    return install_command("batch")


def test_a_checkout_is_named_by_its_folder(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    url = checkout.as_uri()
    assert command(monkeypatch, {"url": url, "dir_info": {}}) == f"pip install '{checkout}[batch]'"
    editable = {"url": url, "dir_info": {"editable": True}}
    assert command(monkeypatch, editable) == f"pip install -e '{checkout}[batch]'"


def test_a_checkout_that_is_gone_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = command(monkeypatch, {"url": "file:///nowhere/herd", "dir_info": {}})
    assert said == "pip install '.[batch]' in a checkout of llama-herd"


@pytest.mark.parametrize(
    "origin", [None, {"url": "file:///srv/herd.whl", "archive_info": {}}], ids=["index", "file"]
)
def test_a_wheel_is_named_by_its_name(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> None:
    assert command(monkeypatch, origin) == "pip install 'llama-herd[batch]'"
