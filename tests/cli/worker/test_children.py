"""Children that are started again when they die, and end together; and which of them `--gpus` asks for."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from llama_herd.cli.worker.children import DEFAULT_BACKOFF, Backoff, run_together
from llama_herd.cli.worker.command import card_commands
from llama_herd.errors import DeviceError
from llama_herd.worker.process import EXIT_DEVICE_LOST
from tests.cli.herd_command import environment
from tests.local.forked_python import start_piped


def child(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys, time; {code}"]


SLEEPER = child("time.sleep(60)")

QUICK = Backoff(first_s=0.01, most_s=0.04)

#: Counts its starts in a file of its own, dies of the first few, and ends with another code then.
COUNTS = """
path, num_deaths, code, last = sys.argv[1:]
open(path, "a").write("x")
os.path.getsize(path) > int(num_deaths) and os._exit(int(last))
code == "kill" and os.kill(os.getpid(), 9)
os._exit(int(code))
"""


def dying(path: Path, num_deaths: int, code: str = "1", last: int = 0) -> list[str]:
    arguments = [str(path), str(num_deaths), code, str(last)]
    return [*child(COUNTS.strip().replace("\n", "; ")), *arguments]


def pauses(logs: list[Any]) -> list[float]:
    return [entry["pause_s"] for entry in logs if "pause_s" in entry]


@pytest.mark.long
def test_one_that_dies_is_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    """The other one lives until the first has been started for the third time, in one process."""
    first, other = tmp_path / "first", tmp_path / "other"
    first.touch()
    patient = child(
        "open(sys.argv[1], 'a').write('x')\nwhile os.path.getsize(sys.argv[2]) < 3: time.sleep(0.01)"
    )
    commands = {"first": dying(first, num_deaths=2), "other": [*patient, str(other), str(first)]}
    with capture_logs() as logs:
        assert run_together(commands, QUICK) == 0
    assert (first.read_text(), other.read_text()) == ("xxx", "x")
    deaths = [entry for entry in logs if "pause_s" in entry]
    assert [(entry["child"], entry["exit_code"]) for entry in deaths] == [("first", 1)] * 2
    assert len(logs) == 4, "a line for each end"


@pytest.mark.long
def test_the_pauses_double_up_to_the_longest(tmp_path: Path) -> None:
    with capture_logs() as logs:
        run_together({"one": dying(tmp_path / "one", num_deaths=4)}, QUICK)
    assert pauses(logs) == [0.01, 0.02, 0.04, 0.04]


@pytest.mark.long
def test_after_a_sound_run_they_begin_anew(tmp_path: Path) -> None:
    with capture_logs() as logs:
        run_together({"one": dying(tmp_path / "one", num_deaths=3)}, QUICK._replace(sound_s=0.0))
    assert pauses(logs) == [0.01] * 3


@pytest.mark.long
def test_a_card_that_is_lost_gets_long_pauses_and_a_line_of_its_own(tmp_path: Path) -> None:
    backoff = QUICK._replace(lost_first_s=0.05, lost_most_s=0.15)
    command = dying(tmp_path / "gpu1", num_deaths=3, code=str(EXIT_DEVICE_LOST))
    with capture_logs() as logs:
        run_together({"gpu1": command}, backoff)
    assert pauses(logs) == [0.05, 0.1, 0.15]
    assert {entry["event"] for entry in logs if "pause_s" in entry} == {
        "GPU lost, trying it again after a pause"
    }
    assert DEFAULT_BACKOFF.after(0.0, 3.0, EXIT_DEVICE_LOST) == 60


@pytest.mark.long
def test_one_that_a_signal_killed_is_started_again_and_counts_as_128_and_its_number(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert run_together({"one": dying(tmp_path / "one", 1, code="kill")}, QUICK) == 0
    assert logs[0]["exit_code"] == 128 + 9


@pytest.mark.long
def test_one_with_wrong_settings_is_not_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    wrong, other = tmp_path / "wrong", tmp_path / "other"
    commands = {"wrong": dying(wrong, 0, last=2), "other": dying(other, num_deaths=3)}
    assert run_together(commands, QUICK) == 2
    assert (wrong.read_text(), other.read_text()) == ("x", "xxxx")


@pytest.mark.long
def test_a_signal_goes_on_to_all_of_them() -> None:
    caller = child("os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    assert run_together({"one": SLEEPER, "two": caller}) == 128 + 15


PARENT = """
import sys
from llama_herd.cli.worker.children import DEFAULT_BACKOFF, Backoff, run_together
from llama_herd.ops.logs import set_up_logs
set_up_logs("json")
sleep = "import time; time.sleep(60); exit('outlived its parent')"
dead, sleeper = [[sys.executable, "-c", code] for code in ("exit(1)", sleep)]
sys.exit(run_together({"dead": dead, "sleeper": sleeper}, Backoff(first_s=600, most_s=600)))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_them_also_while_one_waits_for_its_start(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    with start_piped(["parent"], os.environ, tmp_path) as parent:
        try:
            entry = json.loads(parent.stderr.readline())
            assert (entry["event"], entry["child"]) == ("child died, restarting it", "dead")
            parent.send_signal(number)
            assert parent.wait(timeout=30) == 128 + 15, "as the sleeper, which has no handler"
        finally:
            parent.kill()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_child_outlives_a_parent_that_hears_of_no_end(number: signal.Signals, tmp_path: Path) -> None:
    """Both have the pipe of errors, which ends with the last of them."""
    (tmp_path / "parent.py").write_text(PARENT)
    with start_piped(["parent"], os.environ, tmp_path) as parent:
        assert "child died" in parent.stderr.readline()
        parent.send_signal(number)
        assert parent.stderr.read() == ""


@pytest.fixture
def _two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that tells of two cards."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 0, GPU-a, 8192, NVIDIA A\necho 1, GPU-b, 8192, NVIDIA B\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("_two_cards")
@pytest.mark.parametrize(("gpus", "cards"), [("all", [0, 1]), ("1", [1]), ("1,0,1", [0, 1])])
def test_each_chosen_card_has_a_worker_of_its_name(gpus: str, cards: list[int]) -> None:
    ends = {name: command[-4:] for name, command in card_commands(gpus).items()}
    assert ends == {f"gpu{card}": ["--device", f"cuda:{card}", "--name", f"gpu{card}"] for card in cards}


@pytest.mark.usefixtures("_two_cards")
def test_each_chosen_card_has_a_port_of_its_own() -> None:
    commands = card_commands("all", metrics_port=9400)
    assert [command[-2:] for command in commands.values()] == [
        ["--metrics-port", "9400"],
        ["--metrics-port", "9401"],
    ]


@pytest.mark.long
@pytest.mark.usefixtures("_two_cards")
def test_a_cards_worker_waits_for_a_redis_that_is_away(tmp_path: Path) -> None:
    """If it ended, with 2, it would not be started again."""
    python, option, *command = [part.replace("cuda:0", "cpu") for part in card_commands("0")["gpu0"]]
    assert (python, option) == (sys.executable, "-m")
    with start_piped(command, environment(HERD_REDIS_URL="redis://127.0.0.1:1/0"), tmp_path) as worker:
        try:
            assert any("waiting for Redis" in line for line in worker.stderr)
        finally:
            worker.kill()


@pytest.mark.usefixtures("_two_cards")
def test_a_card_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(DeviceError, match=r"--gpus 0,2, but .* 0 = NVIDIA A; 1 = NVIDIA B"):
        card_commands("0,2")
