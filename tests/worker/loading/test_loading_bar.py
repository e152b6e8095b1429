"""The bar while a model is loaded: on a terminal, if it takes a while, and nowhere else."""

from io import StringIO

import pytest
from rich.console import Console

from llama_herd.worker.loading.loading_bar import loading_bar


@pytest.fixture(autouse=True)
def _real_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that moves its cursor: tests may be run in one that does not."""
    monkeypatch.setenv("TERM", "xterm")


def shown(is_terminal: bool, delay_s: float) -> str:
    screen = StringIO()
    console = Console(file=screen, force_terminal=is_terminal, width=80)
    with loading_bar("loading tales", "bytes", console, delay_s) as note:
        for num_done in (1_000_000, 2_000_000, 4_000_000):
            note(num_done, 4_000_000)
    return screen.getvalue()


def test_a_terminal_shows_the_bytes_that_are_done() -> None:
    text = shown(is_terminal=True, delay_s=0)
    assert "loading tales" in text
    assert "4.0/4.0 MB" in text


@pytest.mark.parametrize(("is_terminal", "delay_s"), [(False, 0), (True, 3600)])
def test_a_pipe_and_a_model_that_is_loaded_soon_show_nothing(is_terminal: bool, delay_s: float) -> None:
    assert shown(is_terminal, delay_s) == ""
