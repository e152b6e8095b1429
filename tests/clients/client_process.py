"""Clients as processes, where they are there: OpenAI's of each major version and for Node, and others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.node import FOLDER, bring_packages

#: What a client is asked to read: see reader.py.
Case = dict[str, Any]

HERE = Path(__file__).parent
#: Where `make test-clients` puts other versions than that of the test environment, a folder each.
VERSIONS = Path(f"{sys.prefix}-clients")
CLIENTS = ["here", *(pytest.param(one, marks=pytest.mark.program) for one in ("1", "2", "node"))]
#: Clients of others, which share a folder there.
OTHERS = "others"


def new_key(redis_url: str) -> str:
    """A key: these clients always show one."""
    with Redis.from_url(redis_url) as redis:
        return run_dialogue(redis, create_key("clients", "default", KeyRole.PRODUCER))


class ClientProcess:
    """A client that reads cases from a gateway. Skips the test if there is no such client."""

    def __init__(self, client: str, url: str, key: str, cases: list[Case]) -> None:
        command, variables = _command_of(client)
        self._client = client
        self._process = subprocess.Popen(
            [*command, f"{url}/v1", key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=FOLDER,
            env={**os.environ, **variables},
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps(cases))
        self._process.stdin = None

    def read(self) -> dict[str, Any]:
        """What it has read, once it is through."""
        try:
            output, errors = self._process.communicate(timeout=100)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, errors
        found: dict[str, Any] = json.loads(output)
        assert self._client in ("here", "node", OTHERS) or found["version"].startswith(f"{self._client}.")
        return found


def _command_of(client: str) -> tuple[list[str], dict[str, str]]:
    """How its reader is started, and with which variables."""
    if client == "node":
        bring_packages()
        return ["node", str(HERE / "reader.mjs")], {}
    folder = VERSIONS / client
    if client != "here" and not folder.exists():
        pytest.skip(f"no clients {client}: make test-clients")
    script = "others.py" if client == OTHERS else "reader.py"
    return [sys.executable, str(HERE / script)], {} if client == "here" else {"PYTHONPATH": str(folder)}
