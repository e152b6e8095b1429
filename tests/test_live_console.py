"""A picture is shown in place where lines can be replaced, and nowhere else."""

import io

import pytest
from rich.console import Console

from llama_herd.live_console import is_live
from tests.chaos.harness.run import Progress
from tests.chaos.harness.screen import progress_display


@pytest.mark.parametrize(("term", "expected"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_a_terminal_is_live_if_it_moves_its_cursor(term: str, expected: bool) -> None:
    assert is_live(Console(force_terminal=True, _environ={"TERM": term})) is expected


def test_a_file_is_not() -> None:
    assert not is_live(Console(file=io.StringIO()))


def test_a_run_of_chaos_writes_lines_on_a_terminal_that_only_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if standard error were a terminal
    with progress_display() as tell:
        tell(Progress("starting", 2, 3, 0, 1.0))
    assert "2 strikes, 3 jobs, 0 broken laws" in capsys.readouterr().err
