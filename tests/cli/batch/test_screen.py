"""The bar of a batch, as a terminal shows it."""

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
