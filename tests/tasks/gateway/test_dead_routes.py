"""What is dead, over plain HTTP: read, sent again, dropped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.dead_letters import MAX_LETTER_BYTES, DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.ledger.script import kept_scripts
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.guarded_redis import GuardedRedis, write_users
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.gateway.test_identity import bearer
from tests.tasks.herd import JOB, QUEUE, Herd, end, ids
from tests.tasks.ledger.test_dead_letters import poison

pytestmark = pytest.mark.redis

PROMPT = "the secret prompt"


def bury(redis: Any, raw: bytes = PROMPT.encode(), queue: str = QUEUE) -> str:
    """Put a message among the dead; its number."""
    letters = DeadLetters()
    run_call(redis, letters.bury(raw, queue=queue, reason="not JSON", worker="gpu0"))
    return run_call(redis, letters.letters())[0].number


def test_what_is_dead_is_listed_without_a_prompt_and_read_with_it(gateway: GatewayThread, herd: Herd) -> None:
    poison(herd, "job-1")
    number = bury(herd.redis)
    found = gateway.ask("GET", "/v1/dead")
    named = {one["name"]: one for one in found.json["data"]}
    assert set(named) == {number, "job-1"}
    assert (named[number]["kind"], named[number]["reason"]) == ("letter", "not JSON")
    assert (named["job-1"]["kind"], named["job-1"]["reason"]) == ("job", "poisoned")
    assert PROMPT.encode() not in found.raw
    letter = gateway.ask("GET", f"/v1/dead/{number}").json
    assert (letter["body"], letter["is_whole"], letter["num_bytes"]) == (PROMPT, True, len(PROMPT))
    assert len(gateway.ask("GET", "/v1/dead?limit=1").json["data"]) == 1
    assert gateway.ask("GET", "/v1/dead?limit=1001").status == 400


def test_a_letter_is_sent_again_or_dropped(gateway: GatewayThread, herd: Herd) -> None:
    number = bury(herd.redis)
    found = gateway.ask("POST", f"/v1/dead/{number}/retry")
    assert (found.status, found.json) == (202, {"name": number, "id": None, "queue": QUEUE})
    assert herd.messages() == [PROMPT.encode()]
    assert gateway.ask("GET", "/v1/dead").json["data"] == []
    other = bury(herd.redis)
    assert gateway.ask("DELETE", f"/v1/dead/{other}").status == 204
    for method, path in (("GET", ""), ("POST", "/retry"), ("DELETE", "")):
        assert gateway.ask(method, f"/v1/dead/{other}{path}").status == 404


def test_a_letter_that_cannot_be_sent_again_says_why(gateway: GatewayThread, herd: Herd) -> None:
    cut = bury(herd.redis, b"x" * (MAX_LETTER_BYTES + 1))
    assert gateway.ask("GET", f"/v1/dead/{cut}").json["is_whole"] is False
    found = gateway.ask("POST", f"/v1/dead/{cut}/retry")
    assert (found.status, found.error["code"]) == (400, "invalid_job")
    assert "bytes were kept" in found.error["message"]
    foreign = bury(herd.redis, b"x", "herd.other:tales")
    assert gateway.ask("POST", f"/v1/dead/{foreign}/retry").status == 400


def test_a_job_that_was_given_up_runs_again_or_is_dropped(gateway: GatewayThread, herd: Herd) -> None:
    poison(herd, "job-1")
    found = gateway.ask("POST", "/v1/dead/job-1/retry")
    assert found.status == 202
    assert ids(herd)[-1] == found.json["id"] != "job-1"
    assert gateway.ask("GET", "/v1/dead").json["data"] == []
    poison(herd, "job-2")
    assert gateway.ask("DELETE", "/v1/dead/job-2").status == 204
    assert gateway.ask("GET", "/v1/jobs/job-2").status == 404


def test_what_is_not_dead_is_not_touched(gateway: GatewayThread, herd: Herd) -> None:
    """The id of another job purges nothing here."""
    herd.submit("lives")
    herd.submit("is-done")
    herd.claimed("is-done")
    herd.emit("one", end("is-done", 1, 0))
    for name in ("lives", "is-done", "a%20b", "1-1", "%00"):
        assert gateway.ask("DELETE", f"/v1/dead/{name}").status == 404
        assert gateway.ask("POST", f"/v1/dead/{name}/retry").status == 404
    assert gateway.ask("GET", "/v1/jobs/is-done").json["state"] == "done"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    folder: Path = tmp_path_factory.mktemp("acl")
    write_users(folder, {"door": Acl("default", ["herd.tales"]).rights(Role.GATEWAY)})
    with GuardedRedis(folder) as server, Redis.from_url(server.url) as root:
        for script in kept_scripts():
            root.script_load(script.source)
        yield server


def test_a_gateway_has_the_rights_that_its_operators_need(guarded: GuardedRedis) -> None:
    with (
        Redis.from_url(guarded.url) as root,
        GatewayThread(guarded.url_of("door"), models="tales") as gateway,
    ):
        herd = Herd(root, Ledger(lease_ms=60_000, worker="w"))
        poison(herd, "job-1")
        number = bury(root)
        asked = [
            *(("GET", "/v1/dead", 200), ("GET", f"/v1/dead/{number}", 200)),
            *(("POST", f"/v1/dead/{number}/retry", 202), ("DELETE", f"/v1/dead/{bury(root)}", 204)),
            *(("GET", "/v1/jobs?state=ended", 200), ("GET", "/v1/jobs?state=failed", 200)),
            *(("GET", "/v1/jobs/job-1", 200), ("POST", "/v1/jobs/job-1/retry", 202)),
            *(("POST", "/v1/queues/tales/clear", 200), ("POST", "/v1/jobs/job-1/purge", 204)),
        ]
        answered = [(method, path, gateway.ask(method, path).status) for method, path, _ in asked]
        assert answered == asked


def test_a_key_with_a_bound_runs_no_job_above_it_again(
    closed_gateway: GatewayThread, herd: Herd, redis: Redis
) -> None:
    key = run_dialogue(redis, create_key("low", "default", KeyRole.OPERATOR, max_priority=0))
    poison(herd, "high", JOB.model_copy(update={"priority": 5}))
    poison(herd, "normal")
    for path in ("/v1/jobs/{}/retry", "/v1/dead/{}/retry"):
        refused = closed_gateway.ask("POST", path.format("high"), headers=bearer(key))
        assert refused.status == 400
        assert "priority: must be at most 0" in refused.error["message"]
    assert closed_gateway.ask("POST", "/v1/dead/normal/retry", headers=bearer(key)).status == 202
