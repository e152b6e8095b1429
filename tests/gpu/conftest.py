"""Tests that need a card: `pytest -m gpu tests/gpu`. Without one they are skipped, and named at the end."""

from pathlib import Path

import pytest
import torch

from tests.tiny import write_tiny_gguf

NO_CARD = "no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_CARD))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.getreports("skipped") if NO_CARD in str(r.longrepr)]
    if skipped:
        terminalreporter.section(f"{len(skipped)} tests need a card and were skipped: {NO_CARD}")
        for report in skipped:
            terminalreporter.line(report.nodeid)


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose generations are as long as they may be."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", eos=False)
