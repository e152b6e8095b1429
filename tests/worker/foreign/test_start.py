"""What a worker in front of a server looks at before it takes a job, and what it does without."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from llama_herd.cli.app import app
from llama_herd.errors import SettingsError
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.worker.foreign.model import ForeignModel
from llama_herd.worker.foreign.server_summary import ServerSummary
from llama_herd.worker.settings import FOREIGN_SLOTS, WorkerSettings
from tests.local.tended_worker import TendedWorker
from tests.stand_in import StandIn
from tests.worker.foreign.conftest import FIELDS, NewServer


def read(kind: str, server: StandIn, model: Path = BUNDLED_MODEL, **others: object) -> WorkerSettings:
    return WorkerSettings.read(engine=kind, engine_url=server.url, model=model, **others)


def settings_of(kind: str, server: StandIn, model: Path = BUNDLED_MODEL, **others: object) -> WorkerSettings:
    return read(kind, server, model, **others).as_foreign()


@pytest.mark.redis
@pytest.mark.worker
def test_such_a_worker_loads_no_torch(
    kind: str, redis_url: str, tmp_path: Path, new_server: NewServer
) -> None:
    settings = read(kind, new_server(), redis_url=redis_url)
    with TendedWorker(settings, "f@test", tmp_path / "log") as worker:
        loaded = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert "llguidance" in loaded
    assert "libtorch" not in loaded


def test_a_server_that_cuts_texts_into_other_ids_is_refused(
    kind: str, tiny_path: Path, new_server: NewServer
) -> None:
    with pytest.raises(SettingsError, match=r"cuts 'Once upon .* into \d+ ids, .* name the model that it"):
        ForeignModel.load(settings_of(kind, new_server(), tiny_path))


def test_a_server_that_wants_another_key_is_told_at_once(kind: str, new_server: NewServer) -> None:
    server = new_server(key="right")
    with pytest.raises(SettingsError, match="HERD_ENGINE_API_KEY: the server refuses it") as told:
        ForeignModel.load(settings_of(kind, server, engine_api_key="wrong"))
    assert "wrong" not in str(told.value)


class OtherServer(BaseHTTPRequestHandler):
    """A server of another kind: it is well, and knows nothing else; or has a page for all."""

    page = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.page or self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(self.page)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("page", [b"", b"<html>", b"{}", b'{"data": [{"id": "m", "max_model_len": 9}]}'])
def test_a_server_of_another_kind_is_told(kind: str, page: bytes) -> None:
    handler = type("Handler", (OtherServer,), {"page": page})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        settings = WorkerSettings.read(engine=kind, engine_url=url, model=BUNDLED_MODEL)
        with pytest.raises(
            SettingsError, match=f"no {kind} that is ready|does not tell how long its context is"
        ):
            ServerSummary.from_settings(settings.as_foreign())
        server.shutdown()


def test_the_context_is_the_server_s_unless_a_setting_is_less(kind: str, new_server: NewServer) -> None:
    server = new_server(context=512)
    for asked, length in ((0, 512), (100, 100), (1000, 512)):
        model = ForeignModel.load(settings_of(kind, server, context_tokens=asked))
        model.close()
        assert model.plan.max_length == model.maker.max_length == length
        assert settings_of(kind, server).slots == FOREIGN_SLOTS[kind]


@pytest.mark.parametrize(
    ("engine", "url", "told"),
    [
        ("vllm", "", "must be the address of the server that HERD_ENGINE=vllm asks"),
        ("own", "http://a", "is a server's, but HERD_ENGINE=own"),
        ("vllm", "http://user:key@a", "must be http:// or https:// and a host, without a name or a key"),
        *(
            ("vllm", url, "must be http:// or https:// and a host.* a port is from 1 to 65535")
            for url in (
                "a:80",
                "http://",
                "http://:80",
                "http://[::1",
                "http://a:0",
                "http://a:x",
                "http://a:65536",
            )
        ),
    ],
)
def test_settings_that_do_not_go_together_are_told(engine: str, url: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        WorkerSettings.read(engine=engine, engine_url=url)


@pytest.fixture
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of a command become variables, which no other test is to see."""
    for name in ("HERD_ENGINE", "HERD_ENGINE_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_plain_environment")
def test_inspect_shows_what_the_server_can_do(kind: str, new_server: NewServer) -> None:
    server = new_server()
    options = ["inspect", "--engine", kind, "--engine-url", server.url]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0
    assert f"{kind} at {server.url}" in shown.output
    assert "the same as of HERD_MODEL" in shown.output
    told = json.loads(CliRunner().invoke(app, [*options, "--json"]).output)
    assert sorted(told["fields"]) == FIELDS
    server.kill()
    gone = CliRunner().invoke(app, options)
    assert gone.exit_code == 2
