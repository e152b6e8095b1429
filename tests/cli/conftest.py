"""Where commands run in tests."""

from pathlib import Path

import pytest


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somewhere without a .env."""
    monkeypatch.chdir(tmp_path)
