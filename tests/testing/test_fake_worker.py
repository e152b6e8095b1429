"""`herd fake-worker`: jobs of any service are answered without torch and without a model."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from llama_herd import Client
from llama_herd.extras import MODULES
from llama_herd.local.redis_server import free_port
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.cli.herd_command import environment, invoke

#: What a worker with a model needs, and this one does not.
UNNEEDED = sorted({*MODULES["worker"], "llguidance", "prometheus_client"} - {"celery", "structlog"})

#: Runs the command where none of these can be imported.
LACKING = f"""
import sys
sys.modules.update(dict.fromkeys({UNNEEDED}))
from llama_herd.cli import main
main()
"""


@contextmanager
def fake_workers(url: str, log: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", LACKING, "fake-worker", *arguments]
    with (
        log.open("wb") as lines,
        subprocess.Popen(
            command,
            env=environment(HERD_REDIS_URL=url, **variables),
            cwd=log.parent,
            stdout=lines,
            stderr=lines,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.redis
@pytest.mark.worker
def test_it_answers_without_what_a_model_needs_and_ends_at_a_signal(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    log = tmp_path / "log"
    options = ("--with-redis", "--model", "llama-3", "--model", "qwen", "--answer", "one two")
    with fake_workers(url, log, *options) as process, Client(url) as client:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return log.read_text().count("worker ready") == 2

        wait_until(is_ready, "both take jobs")
        for model in ("llama-3", "qwen"):
            assert client.result(client.submit(prompt="x", model=model)).text == "one two"
        (first, _) = sorted(worker.name for worker in client.workers())
        pid = int(re.findall(r"fake-(\d+)@", first)[0])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: log.read_text().count("worker ready") == 3, "another one in its place")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.redis
@pytest.mark.worker
def test_a_script_says_the_answers(redis_url: str, redis: Redis, tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(
        '[[answers]]\ntext = "no"\n[[answers]]\nto = "^[0-9]+$"\ntext = "a number"\n'
    )
    with fake_workers(redis_url, tmp_path / "log", "--script", "script.toml"), Client(redis_url) as client:
        assert client.result(client.submit(prompt="x")).text == "no"
        assert client.result(client.submit(prompt="12")).text == "a number"


@pytest.mark.redis
@pytest.mark.worker
def test_it_says_that_it_serves_no_metrics(redis_url: str, redis: Redis, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with fake_workers(redis_url, log, HERD_METRICS_PORT=str(free_port())), Client(redis_url) as client:
        assert client.result(client.submit(prompt="x")).finish_reason == "stop"
        told, *lines = log.read_text().splitlines()
    assert told == "herd: a fake worker serves no metrics, HERD_METRICS_PORT is ignored"
    (ready,) = [line for line in lines if "worker ready" in line]
    assert '"metrics_port": null' in ready


@pytest.mark.redis
@pytest.mark.worker
def test_it_keeps_no_job_however_many_come(redis_url: str, redis: Redis, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from llama_herd.testing import Script\n"
        "script = Script()\n"
        "script.answer(lambda one: f'{len(script.jobs)} kept')\n"
    )
    with fake_workers(redis_url, tmp_path / "log", "--script", "script.py"), Client(redis_url) as client:
        for _ in range(3):
            assert client.result(client.submit(prompt="x")).text == "0 kept"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--script", "nowhere.toml"), "nowhere.toml: cannot be read"),
        (("--script", "a.toml", "--answer", "x"), "--script says all answers"),
        (("--model", "a b"), "--model a b: must be 1 to 128 letters"),
        ((), "cannot be reached"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(options: tuple[str, ...], words: str) -> None:
    done = invoke("fake-worker", *options, HERD_REDIS_URL="redis://127.0.0.1:1/0")
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_its_processes_load_nothing_of_a_model() -> None:
    show = "import llama_herd.testing.fake_worker, llama_herd.testing.fake_herd, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert not {*UNNEEDED, "pytest", "typer"} & {name.partition(".")[0] for name in done.stdout.split()}
