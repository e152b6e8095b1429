"""`herd health` is run every few seconds in every container: it brings little, and never hangs."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from llama_herd.cli import health_port
from llama_herd.cli.health_port import NUM_PORTS
from llama_herd.ops.exporter import Exporter
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.health import Health
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import environment, invoke, start_herd

pytestmark = pytest.mark.redis

#: Runs `herd health`, and prints what it has imported beside what any Python has.
SHOW_MODULES = """
import sys
before = {*sys.modules}
sys.argv = ["herd", "health"]
from llama_herd.cli import main
try: main()
except SystemExit as exit: print(int(exit.code or 0), *({*sys.modules} - before))
"""

#: The modules of ours that a check by a port may import; and all others, these bring.
BY_PORT = {"llama_herd", "llama_herd.cli", "llama_herd.cli.health_port"}
WHAT_A_SOCKET_BRINGS = "import sys, importlib, typing, socket, encodings.idna; print(0, *sys.modules)"

#: And one in Redis, of the command line.
BY_REDIS = {*BY_PORT, "llama_herd.cli.health", "llama_herd.cli.terminal"}


def say(redis: Redis, name: str, state: str, tenant: str = "default", **fields: Any) -> None:
    status = WorkerStatus(name=name, state=state, model="m", device="cpu", slots=1, **fields)
    run_call(redis, Reports(tenant).report_worker(status))


def test_a_worker_of_several_tenants_is_looked_for_where_it_is(redis: Redis, redis_url: str) -> None:
    say(redis, f"one@{os.uname().nodename}", "ready", "acme")
    assert invoke("health", HERD_REDIS_URL=redis_url).exit_code == 1
    assert invoke("health", HERD_REDIS_URL=redis_url, HERD_TENANTS="acme,globex").exit_code == 0


@pytest.mark.parametrize("state", ["loading", "starting", "stalled", "silent", "stuck", "spoilt", "stopping"])
def test_only_ready_is_healthy(redis: Redis, redis_url: str, state: str) -> None:
    here = f"@{os.uname().nodename}"
    say(redis, f"one{here}", state)
    told = invoke("health", HERD_REDIS_URL=redis_url)
    assert told.exit_code == 1
    shown = "loading 100%" if state == "loading" else state
    assert f"one{here} is {shown}: " in told.stderr
    say(redis, "two@elsewhere", "ready")
    assert invoke("health", HERD_REDIS_URL=redis_url).exit_code == 1
    say(redis, f"three{here}", "ready")
    assert invoke("health", HERD_REDIS_URL=redis_url).exit_code == 0
    assert invoke("health", "--name", "one", HERD_REDIS_URL=redis_url).exit_code == 1
    assert invoke("health", "--name", "three", HERD_REDIS_URL=redis_url).exit_code == 0


#: As a worker says it of a queue that it leaves out.
LEFT_OUT = {"left_out": "herd.m", "spoilt_key": "herd.m\x06\x16urgent", "spoilt_type": "set"}


def test_a_worker_that_leaves_a_queue_out_is_healthy_while_it_reads_another(
    redis: Redis, redis_url: str
) -> None:
    here = f"one@{os.uname().nodename}"
    say(redis, here, "ready", **LEFT_OUT)
    assert invoke("health", HERD_REDIS_URL=redis_url).exit_code == 0
    say(redis, here, "spoilt", **LEFT_OUT)
    told = invoke("health", HERD_REDIS_URL=redis_url)
    assert told.exit_code == 1
    (line,) = told.stderr.splitlines()
    assert f"{here} is spoilt: reads no queue" in line
    assert r'its key "herd.m\x06\x16urgent" is a set, not a list. Fix: delete or rename it' in line


def imported(folder: Path, code: str = SHOW_MODULES, **variables: str) -> tuple[int, set[str]]:
    """The exit code, and what was imported."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    exit_code, *modules = done.stdout.split()
    return int(exit_code), set(modules)


@contextmanager
def answering(*found: Health) -> Iterator[int]:
    """Workers at ports side by side that say this of themselves; the first port."""
    first = port_before(len(found))
    exporters = [
        Exporter.start(
            WorkerSettings.model_validate({"redis_url": "redis://127.0.0.1:1", "metrics_port": port}),
            {"/health/ready": lambda one=one: one},  # type: ignore[misc]
        )
        for port, one in enumerate(found, first)
    ]
    try:
        yield first
    finally:
        for exporter in filter(None, exporters):
            exporter.stop()


def port_before(num: int) -> int:
    """The first of so many free ports side by side, and of enough others that nobody answers at."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            first = int(one.getsockname()[1])
        with ExitStack() as stack, suppress(OSError, OverflowError):
            for port in range(first, first + max(num, NUM_PORTS)):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


LOADING = Health.ready("loading 7%: is loading its model")


def test_a_check_by_a_port_imports_what_a_socket_needs_and_nothing_more(tmp_path: Path) -> None:
    _, allowed = imported(tmp_path, WHAT_A_SOCKET_BRINGS)
    with answering(Health.ready()) as port:
        exit_code, modules = imported(tmp_path, HERD_METRICS_PORT=str(port))
    assert exit_code == 0
    assert modules - allowed == BY_PORT


def test_a_check_in_redis_imports_no_other_command_and_no_client(redis_url: str, tmp_path: Path) -> None:
    exit_code, modules = imported(tmp_path, HERD_REDIS_URL=redis_url)
    assert (exit_code, "redis" in modules) == (1, True)
    assert {name for name in modules if name.startswith("llama_herd.cli")} == BY_REDIS - {"llama_herd"}
    assert not modules & {"torch", "numpy", "celery", "kombu", "gguf", "tokenizers", "rich.console"}
    assert not {name for name in modules if name.startswith(("llama_herd.worker", "llama_herd.tasks.client"))}


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ([Health.ready()], ""),
        ([LOADING], str(LOADING.reason)),
        ([LOADING, Health.ready()], ""),
        ([LOADING, Health.ready("stalled: its engine stands still")], str(LOADING.reason)),
    ],
    ids=["ready", "loading", "one of two", "none of two"],
)
def test_the_worker_at_the_port_says_it_itself(found: list[Health], complaint: str, tmp_path: Path) -> None:
    with answering(*found) as port, start_herd(tmp_path, "health", HERD_METRICS_PORT=str(port)) as process:
        said = process.communicate(timeout=60)
        told = invoke("health", HERD_METRICS_PORT=str(port))
    assert (process.returncode, *said) == (told.exit_code, told.stdout, told.stderr)
    assert (told.exit_code, told.stderr) == ((1, f"herd: {complaint}\n") if complaint else (0, ""))


def test_a_port_at_which_nobody_answers_or_somebody_else_is_no_healthy_worker() -> None:
    port = port_before(1)
    told = invoke("health", HERD_METRICS_PORT=str(port))
    nobody = f"no worker answers at 127.0.0.1:{port}: it begins, or has ended"
    assert (told.exit_code, told.stderr) == (1, f"herd: {nobody}\n")
    with answering(Health.live()) as port:
        assert "no worker of ours: status 200" in invoke("health", HERD_METRICS_PORT=str(port)).stderr


def test_a_worker_that_does_not_answer_in_time_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_port, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", port_before(1))) as frozen:
        port = frozen.getsockname()[1]
        told = invoke("health", HERD_METRICS_PORT=str(port))
    assert told.exit_code == 1
    assert f"the worker at 127.0.0.1:{port} does not answer: timed out" in told.stderr


def test_all_that_are_silent_take_no_longer_than_one_and_hide_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_port, "TIMEOUT_S", 0.4)
    monkeypatch.setattr(health_port, "PATIENCE_S", 0.05)
    with answering(LOADING, Health.ready()) as ready, ExitStack() as stack:
        first = port_before(NUM_PORTS)
        for port in range(first, first + 8):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        began_s = monotonic()
        told = invoke("health", HERD_METRICS_PORT=str(first))
        assert monotonic() - began_s < 2 * 0.4
        assert f"the worker at 127.0.0.1:{first} does not answer: timed out" in told.stderr
        with suppress(OSError):  # a silent one before those that answer, if its port is free
            stack.enter_context(socket.create_server(("127.0.0.1", ready - 1)))
        assert invoke("health", HERD_METRICS_PORT=str(ready - 1)).exit_code == 0


def test_without_a_port_or_with_a_name_redis_is_asked(redis: Redis, redis_url: str) -> None:
    say(redis, f"one@{os.uname().nodename}", "ready")
    nobody = str(port_before(1))
    assert invoke("health", HERD_REDIS_URL=redis_url, HERD_METRICS_PORT="0").exit_code == 0
    assert (
        invoke("health", "--name", "one", HERD_REDIS_URL=redis_url, HERD_METRICS_PORT=nobody).exit_code == 0
    )
    wrong = invoke("health", HERD_REDIS_URL=redis_url, HERD_METRICS_PORT="70000")
    assert (wrong.exit_code, wrong.stderr.startswith("herd: HERD_METRICS_PORT='70000': ")) == (1, True)
