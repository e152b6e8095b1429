"""The bar of a batch, as a terminal shows it."""

import os
import sys

import pytest

from tests.terminal import Terminal

#: Shows the same figures whenever a line comes in.
SHOWING = """
import sys
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.cli.batch.screen import open_screen
status = BatchStatus(run_id="r", state="running", input_name="x", num_rows=10_000_000, num_done=1_234_567,
                     num_failed=1234, num_under_way=2048, rows_per_s=1234.5, tokens_per_s=98765.4)
with open_screen(as_json=False) as screen:
    for _ in sys.stdin:
        screen.show(status)
"""
FIGURES = ["1,235,801 of 10,000,000 rows, 1,234 failed, 2,048 under way", "1,234.5 rows/s, 98,765 tokens/s"]
LAST = "1 h 58 min left"


#: Shows figures that grow and shrink, a message between them, and the end.
IN_NOTEBOOK = """
import sys
from llama_herd.cli.batch.screen import Summary, open_screen
from llama_herd.tasks.client.batch.batch_progress import Percentiles
from llama_herd.tasks.protocol.batch_status import BatchStatus
def status(num):
    return BatchStatus(run_id="r", state="running", input_name="x", num_rows=1_000_000, num_done=num)
with open_screen(as_json=False) as screen:
    screen.say("run r begins")
    screen.show(status(999_999))
    screen.show(status(7))
    sys.stdin.readline()
    screen.say("Redis is back")
    screen.show(status(8))
    screen.show_summary(Summary(status(8), Percentiles(None, None), None))
"""


def shown_anew(terminal: Terminal) -> list[str]:
    """Ask for the figures, and read until the last of them is there."""
    terminal.screen.reset()
    terminal.type("\n")
    terminal.read_until(LAST)
    return terminal.lines


@pytest.mark.long
def test_the_bar_is_as_wide_as_the_terminal_and_no_figure_is_cut_also_after_a_resize() -> None:
    with Terminal(60) as terminal, terminal.start([sys.executable, "-c", SHOWING]) as process:
        for width in (60, 80, 200, 100, 70):
            terminal.resize(width)
            bar, *figures = shown_anew(terminal)
            assert figures == [*FIGURES, LAST]
            assert (len(bar), bar.endswith(" 12%")) == (width, True)
        terminal.type("\x04")  # the end of its input
        assert process.wait() == 0


@pytest.mark.parametrize(
    "variable", [{"JPY_PARENT_PID": "7"}, {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}]
)
def test_in_a_notebook_one_line_is_written_over_without_moving_a_cursor(variable: dict[str, str]) -> None:
    """As Jupyter runs `!herd batch`: on a terminal, of which it shows no more than carriage returns."""
    env = {name: value for name, value in os.environ.items() if name not in ("JPY_PARENT_PID", "MPLBACKEND")}
    with Terminal(100) as terminal:
        with terminal.start([sys.executable, "-c", IN_NOTEBOOK], env | variable) as process:
            line = "0% - 7 of 1,000,000 rows, 0 failed, 0 under way; 0.0 rows/s, 0 tokens/s"
            terminal.read_until(line)
            assert terminal.lines == ["run r begins", line]
            terminal.type("\n")
            while terminal.read():
                pass
            assert process.wait() == 0
        assert terminal.lines[:3] == [
            "run r begins",
            "Redis is back",
            "rows         8 rows done, 0 failed in 0 s",
        ]
        assert b"\x1b" not in terminal.shown
