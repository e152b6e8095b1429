"""Every command that asks Redis says in one line why it cannot, and what to do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.cli.gateway import EXIT_REDIS_AWAY
from llama_herd.local.redis_server import EmbeddedRedis
from tests.cli.herd_command import invoke

pytestmark = pytest.mark.redis

#: Commands that ask Redis at once. `herd health` knows 0 and 1 only.
COMMANDS = {
    "status": 2,
    "jobs": 2,
    "watch job": 2,
    "cancel job": 2,
    "purge job": 2,
    "dead list": 2,
    "keys list": 2,
    "generate hi": 2,
    "batch rows.jsonl --output answers.jsonl": 2,
    "worker": 2,
    "gateway": 2,
    "health": 1,
}

FAULTS = {
    "NOPERM": "does not let this user do that (NOPERM): ",
    "WRONGPASS": "rejects the user or the password (WRONGPASS). Fix: ",
    "closed": "cannot be reached: nothing listens there. Fix: ",
}


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    """An address for each fault."""
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        redis.acl_setuser("poor", enabled=True, passwords="+x", commands=["+hello", "+client"])
        place = f"127.0.0.1:{server.port}/0"
        yield {
            "NOPERM": f"redis://poor:x@{place}",
            "WRONGPASS": f"redis://poor:y@{place}",
            "closed": "redis://127.0.0.1:1/0",
        }


@pytest.fixture(autouse=True)
def _rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Once"}\n')


@pytest.mark.parametrize("command", COMMANDS)
def test_a_right_that_is_missing_is_told_in_one_line(places: dict[str, str], command: str) -> None:
    check(command, "NOPERM", places)


@pytest.mark.long
@pytest.mark.parametrize("command", ["status", "health", "worker", "gateway"])
@pytest.mark.parametrize("fault", ["WRONGPASS", "closed"])
def test_a_redis_that_lets_nobody_in_is_told_in_one_line(
    places: dict[str, str], command: str, fault: str
) -> None:
    check(command, fault, places)


def check(command: str, fault: str, places: dict[str, str]) -> None:
    done = invoke(*command.split(), HERD_REDIS_URL=places[fault])
    expected = EXIT_REDIS_AWAY if (command, fault) == ("gateway", "closed") else COMMANDS[command]
    assert done.exit_code == expected, done.output
    said = [line for line in done.stderr.splitlines() if FAULTS[fault] in line]
    assert len(said) == 1, done.output
    assert said[0].startswith("herd: Redis at redis://")
    assert ". Fix: " in said[0]
    assert "Traceback" not in done.output
