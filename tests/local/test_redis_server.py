"""A redis-server that has the port it is told, and ends with whoever started it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from redis import Redis

from llama_herd.errors import BadInput, RedisUnavailable
from llama_herd.local.redis_server import EmbeddedRedis
from tests.full_disk import room_for
from tests.local.processes import wait_until

pytestmark = pytest.mark.redis

OWNER = """
from llama_herd.local.redis_server import EmbeddedRedis
server = EmbeddedRedis().start()
print(server.pid, flush=True)
input()
"""


def test_it_has_the_port_it_is_told(redis_server: EmbeddedRedis) -> None:
    port = EmbeddedRedis().port
    with EmbeddedRedis(port) as server, Redis(port=port) as redis:
        assert server.port == port != redis_server.port
        assert redis.ping()


def test_where_no_temporary_folder_can_be_made_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    with room_for(0), pytest.raises(BadInput, match=r"no temporary folder can be made: .* Fix: TMPDIR"):
        EmbeddedRedis()


def test_another_server_at_its_port_is_not_taken_for_it(redis_server: EmbeddedRedis) -> None:
    with pytest.raises(RedisUnavailable, match=f"ended as it started on port {redis_server.port}: "):
        EmbeddedRedis(redis_server.port).start()


@pytest.mark.long
def test_why_it_does_not_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with EmbeddedRedis(folder=folder) as server, Redis.from_url(server.url) as redis:
        redis.set("a", "b")
    (log, *_) = [*folder.glob("appendonlydir/*.incr.aof"), *folder.glob("appendonly.aof")]
    log.write_text("no log of commands")
    with pytest.raises(RedisUnavailable, match=r"ended as it started on port \d+: Bad file format"):
        EmbeddedRedis(folder=folder).start()


@pytest.mark.long
def test_it_is_waited_for_while_it_reads_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis(folder=tmp_path) as server, Redis.from_url(server.url) as redis:
        for number in range(8192):
            redis.set(f"key{number}", "x")
    server = EmbeddedRedis(folder=tmp_path)
    (tmp_path / "redis.log").unlink()
    command = [*server._command(), "--key-load-delay", "200"]  # microseconds a key
    monkeypatch.setattr(server, "_command", lambda: command)
    with server:
        assert "Ready to accept connections" in (tmp_path / "redis.log").read_text()


def test_what_an_earlier_server_has_logged_there_is_not_taken_for_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes no line of the log."""
    log = tmp_path / "redis.log"
    log.write_text("7:M 29 Nov 2026 10:04:00.123 # ready to exit, bye bye...\n")
    server = EmbeddedRedis(folder=tmp_path)
    monkeypatch.setattr(server, "_command", lambda: ["false"])
    with pytest.raises(
        RedisUnavailable, match=f"it wrote nothing into {log}. Fix: see whether that disk is full"
    ):
        server.start()


def test_ctrl_c_in_our_terminal_is_not_for_it(redis_server: EmbeddedRedis) -> None:
    assert os.getsid(redis_server.pid) == os.getpgid(redis_server.pid) == redis_server.pid


@pytest.mark.long
def test_it_is_gone_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # where its folder stays
    )
    with owner:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        assert server.is_running()
        owner.kill()
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "server gone")


def test_a_start_that_fails_leaves_no_process() -> None:
    before = psutil.Process().children()
    server = EmbeddedRedis()
    server._wait_until_up = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert psutil.Process().children() == before


def interrupted() -> None:
    """Ctrl-C while the server comes up."""
    raise KeyboardInterrupt
