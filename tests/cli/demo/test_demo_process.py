"""The demo as a person runs it: a process with a Redis and a worker, of which nothing is left."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from rich.console import Console

from llama_herd.cli.demo.demo import run_demo
from llama_herd.cli.demo.screen import DemoScreen, Phase
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import invoke, start_herd
from tests.local.processes import PATIENCE_S, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

Process = subprocess.Popen[str]

#: An environment that names Redises which are not there, and tenants of others.
OTHERS = {
    **dict.fromkeys(("HERD_REDIS_URL", "CELERY_BROKER_URL", "REDIS_URL"), "redis://127.0.0.1:1/0"),
    "HERD_TENANTS": "acme,globex",
}


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context ends soon after the demo's prompts, and its tales with it."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", context_length=144)


@pytest.fixture
def start(tmp_path: Path, tiny_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts demos."""
    started: list[Process] = []

    def demo(*arguments: str) -> Process:
        started.append(start_herd(tmp_path, "demo", "--model", str(tiny_path), *arguments, **OTHERS))
        return started[-1]

    yield demo
    for process in started:
        left = [psutil.Process(process.pid), *family(process.pid)] if process.poll() is None else []
        for one in left:
            one.kill()
        process.communicate()


def family(pid: int) -> list[psutil.Process]:
    """What a demo has started: its Redis and its worker."""
    return psutil.Process(pid).children(recursive=True)


def grown_family(process: Process) -> list[psutil.Process]:
    """The same, once both are there, and the worker is no copy of the demo any more."""

    started: list[psutil.Process] = []

    def is_grown() -> bool:
        started[:] = family(process.pid)
        return len(started) >= 2 and any(map(is_worker, started))

    wait_until(lambda: is_grown() or process.poll() is not None, "redis and worker")
    return started


def is_worker(process: psutil.Process) -> bool:
    try:
        return "worker" in process.cmdline()
    except psutil.Error:  # it is just changing, or gone
        return False


@pytest.mark.program
def test_a_demo_shows_it_all_and_leaves_nothing(start: Callable[..., Process]) -> None:
    process = start()
    others = grown_family(process)
    shown, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, complaints) == (0, "")
    assert len(others) == 2
    assert not any(other.is_running() for other in others)
    lines = shown.splitlines()
    assert not any("\x1b" in line for line in lines)
    assert [line.split()[0] for line in lines[:3]] == ["redis", "model", "worker"]
    assert "tiny: 0.5 MB, F32, 21 tensors" in lines[1]
    assert re.match(r"worker  (cpu|cuda:0), 32 slots, first job done  [\d.]+ s$", lines[2])
    assert [line.split()[1] for line in lines[4:12]] == ["done,"] * 8
    assert any(line.startswith("tokens/s ") for line in lines)
    assert len([line for line in lines if line.startswith("  ") and "herd" in line and "#" not in line]) == 4


@pytest.mark.program
@pytest.mark.usefixtures("forked_workers")
def test_a_demo_reports_the_same_in_json(tiny_path: Path) -> None:
    done = invoke("demo", "--json", "--model", str(tiny_path), **OTHERS)
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    phases, jobs, steps = report["phases"], report["jobs"], report["next"]
    assert isinstance(phases, list)
    assert isinstance(jobs, list)
    assert isinstance(steps, list)
    assert [phase["name"] for phase in phases] == ["redis", "model", "worker"]
    assert len({job["job"] for job in jobs}) == 8
    assert all(job["text"] and job["finish_reason"] in ("stop", "length") for job in jobs)
    assert len(steps) == 4
    for name in ("together", "one_by_one"):
        figures = report[name]
        assert isinstance(figures, dict)
        assert figures["num_tokens"] > 8
        assert 0 < figures["ttft"]["p50_s"] <= figures["ttft"]["p95_s"]


@pytest.mark.program
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_ends_all_of_it(start: Callable[..., Process], number: signal.Signals) -> None:
    process = start()
    others = grown_family(process)
    assert len(others) == 2
    os.killpg(process.pid, number)  # as a terminal does: to all that was started from it
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert not any(other.is_running() for other in others)


@pytest.mark.program
def test_a_worker_that_dies_is_reported_with_its_last_words(start: Callable[..., Process]) -> None:
    process = start()
    others = grown_family(process)
    (worker,) = filter(is_worker, others)
    worker.kill()
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert re.match(r"herd: worker demo@\S+ ended with exit code -9", complaint)
    assert "Traceback" not in complaint
    assert not any(other.is_running() for other in others)


class BrokenScreen(DemoScreen):
    """Fails once all processes are there."""

    seen: tuple[psutil.Process, ...] = ()

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        with super().phase(name) as phase:
            yield phase
        if name == "model":
            self.seen = tuple(family(os.getpid()))
            raise RuntimeError("broken screen")


def test_an_exception_leaves_nothing(tiny_settings: WorkerSettings) -> None:
    screen = BrokenScreen(Console(quiet=True))
    before = set(family(os.getpid()))
    with pytest.raises(RuntimeError, match="broken screen"):
        run_demo(tiny_settings, screen)
    assert len(set(screen.seen) - before) == 2
    assert set(family(os.getpid())) <= before


def lines_until(process: Process, told: str, num: int = 1) -> list[str]:
    """What it prints until so many lines have these words; these lines."""
    assert process.stdout is not None
    return list(islice((line for line in process.stdout if told in line), num))


@pytest.mark.program
def test_a_web_demo_stays_replaces_dead_workers_and_leaves_nothing(start: Callable[..., Process]) -> None:
    process = start("--web")
    url = lines_until(process, "open ")[0].split()[1]
    workers = [int(line.split("-9 ")[1].split()[0]) for line in lines_until(process, " is ready", 2)]
    with urlopen(url) as answer:
        assert b"<title>llama-herd</title>" in answer.read()
    os.kill(workers[0], signal.SIGKILL)
    lines_until(process, " is dead")
    lines_until(process, " is ready")
    with urlopen(f"{url}/v1/models") as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["tiny"]
    others = family(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, complaints) == (0, "")
    assert len(others) >= 3
    assert not any(other.is_running() for other in others)


@pytest.mark.usefixtures("forked_workers")
def test_a_web_demo_without_a_model_says_why() -> None:
    done = invoke("demo", "--web", "--model", __file__, **OTHERS)
    assert done.exit_code == 1
    assert "not a model file" in done.stderr
    assert "Traceback" not in done.stderr
