"""Fixtures for pytest: `pytest_plugins = ["llama_herd.testing.plugin"]` in the conftest.py at the root."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from llama_herd.tasks.settings import BUNDLED_MODEL_NAME, Settings
from llama_herd.testing.fake_herd import FakeHerd


@pytest.fixture(scope="session")
def herd_models() -> Sequence[str]:
    """The names of the models that are served; define it anew to name others."""
    return (BUNDLED_MODEL_NAME,)


@pytest.fixture(scope="session")
def herd_settings() -> Mapping[str, Any]:
    """Further arguments of `FakeHerd`; define it anew to set some."""
    return {}


@pytest.fixture(scope="session")
def herd_session(herd_models: Sequence[str], herd_settings: Mapping[str, Any]) -> Iterator[FakeHerd]:
    """One herd for all tests. It starts in about a second, so that tests share it."""
    with FakeHerd(herd_models, **herd_settings) as herd:
        yield herd


@pytest.fixture
def herd(herd_session: FakeHerd, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHerd]:
    """The herd without answers and jobs. Clients that name no Redis meanwhile find this one."""
    monkeypatch.setenv(Settings.variables("redis_url")[0], herd_session.url)
    yield herd_session
    herd_session.reset()
