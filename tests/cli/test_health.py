"""`herd health` is run every few seconds in every container: it brings little, and never hangs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.cli.herd_command import environment, invoke

pytestmark = pytest.mark.redis

SHOW_MODULES = """
import sys
from llama_herd.cli.app import app
sys.argv = ["herd", "health"]
try: app()
except SystemExit: print(*sys.modules)
"""


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


@pytest.mark.long
def test_it_brings_neither_torch_nor_celery(redis_url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES],
        env=environment(HERD_REDIS_URL=redis_url),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    modules = set(done.stdout.split())
    assert "redis" in modules
    assert not modules & {"torch", "numpy", "celery", "kombu", "gguf", "tokenizers", "rich.console"}
