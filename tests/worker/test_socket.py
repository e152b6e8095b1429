"""Redis at a socket file, with a password: client, worker, queue, links and results."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import chain

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import ForkedWorker

pytestmark = [pytest.mark.redis, pytest.mark.worker]

PASSWORD = "hunter 2@;/:"


class SocketRedis(EmbeddedRedis):
    """One that also listens at a socket file, in a folder whose name must be quoted."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        (place := folder / "a b").mkdir()
        self.path = place / "r.sock"

    @property
    def url(self) -> str:
        return f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        return [*super()._command(), "--unixsocket", str(self.path), "--requirepass", PASSWORD]


def test_all_goes_over_the_socket(tiny_path: Path, tmp_path: Path) -> None:
    with SocketRedis(tmp_path) as server:
        settings = WorkerSettings.read(
            redis_url=f"unix://{quote(str(server.path))}?db=3&username=default",
            redis_password=PASSWORD,
            model_name="m",
            model=tiny_path,
            threads=1,
        )
        job: dict[str, Any] = {"prompt": "Once", "sampling": {"max_tokens": 3, "ignore_eos": True}}
        with (
            Client(settings=settings) as client,
            ForkedWorker(settings, "socket@test", log := tmp_path / "log"),
            make_app(settings) as app,
        ):
            assert client.result(client.submit(**job), timeout_s=30).finish_reason == "length"
            tale = app.signature(TASK_NAME, kwargs=job, queue="herd.m", immutable=True)
            sent = chain(tale, tale).apply_async()
            assert sent.get(timeout=30)["finish_reason"] == "length"
        assert "hunter" not in log.read_text()
