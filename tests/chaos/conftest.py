"""Each fault test gets a Redis of its own, with an append-only file, and a herd around it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import SETTINGS, Herd
from tests.chaos.harness.reference import Reference
from tests.tiny import write_tiny_gguf

#: So many outputs of a test are compared at most: each is computed anew, and alone.
NUM_COMPARED = 24

_FIGURES = pytest.StashKey[list[str]]()
_ERRORS = pytest.StashKey[list[BaseException]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for figure in config.stash[_FIGURES]:
        terminalreporter.write_line(figure)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run a fault test once more that failed by a patience alone: the machine may be busy elsewhere.

    What failed in any other way fails at once, also if a patience was missed before: a broken law is one.
    """
    if item.get_closest_marker("fault") is None or _ERRORS in item.stash:
        return None
    errors = item.stash[_ERRORS] = []
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if errors and all(isinstance(error, TimeoutError) for error in errors):
        item.warn(pytest.PytestWarning(f"run once more: {errors[0]}"))
        # From the top, so that the second run has a time limit of its own.
        return item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note each error of a test, its fixtures' included."""
    if call.excinfo is not None:
        item.stash.setdefault(_ERRORS, []).append(call.excinfo.value)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines that are printed at the end of the run: what was measured on the way."""
    return request.config.stash[_FIGURES]


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never draws EOS: a job is as long as it asks for."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tales.gguf", eos=False)


@pytest.fixture(scope="session")
def reference(endless: Path) -> Reference:
    """Most tests ask for the same jobs."""
    return Reference(WorkerSettings.read(model=endless, **SETTINGS))


@pytest.fixture(autouse=True)
def _forked(forked_workers: None) -> None:
    """Hundreds of workers are started here, and each new Python takes seconds of a core."""


@pytest.fixture
def server() -> Iterator[FragileRedis]:
    with FragileRedis() as server:
        yield server


@pytest.fixture
def herd(server: FragileRedis, endless: Path, tmp_path: Path, reference: Reference) -> Iterator[Herd]:
    """Its jobs are held to every law once the test is over."""
    with Herd(server, endless, tmp_path, reference=reference, max_compared=NUM_COMPARED) as herd:
        yield herd
        assert herd.verdict().violations == ()
