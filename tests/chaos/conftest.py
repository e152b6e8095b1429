"""Each fault test gets a Redis of its own, with an append-only file, and a herd around it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_herd.worker.chaos.fragile_redis import FragileRedis
from llama_herd.worker.chaos.herd import Herd
from tests.tiny import write_tiny_gguf

_FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for figure in config.stash[_FIGURES]:
        terminalreporter.write_line(figure)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines that are printed at the end of the run: what was measured on the way."""
    return request.config.stash[_FIGURES]


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never draws EOS: a job is as long as it asks for."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tales.gguf", eos=False)


@pytest.fixture
def server() -> Iterator[FragileRedis]:
    with FragileRedis() as server:
        yield server


@pytest.fixture
def herd(server: FragileRedis, endless: Path, tmp_path: Path) -> Iterator[Herd]:
    """Its jobs are held to every law once the test is over."""
    with Herd(server, endless, tmp_path) as herd:
        yield herd
        assert herd.verdict().violations == ()
