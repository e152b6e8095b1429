"""Progress of a run is shown in place where lines can be replaced, and nowhere else."""

import pytest

from tests.chaos.harness.run import Progress
from tests.chaos.harness.screen import progress_display


def test_a_run_writes_lines_on_a_terminal_that_only_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if standard error were a terminal
    with progress_display() as tell:
        tell(Progress("starting", 2, 3, 0, 1.0))
    assert "2 strikes, 3 jobs, 0 broken laws" in capsys.readouterr().err
