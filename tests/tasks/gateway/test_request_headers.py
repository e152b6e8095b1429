"""Headers that say how a request is answered have one rule at all routes that take them."""

from typing import Any

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks.gateway.request_headers import GONE_HEADER, KEY_HEADER, LAST_ID_HEADER
from llama_herd.tasks.gateway.routes import OPERATIONS, Operation, Schema
from llama_herd.tasks.openai.batch_object import BatchBody
from tests.batch_api import BatchApi, lines, rows
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd

pytestmark = pytest.mark.redis


def taking(header: str) -> list[Operation]:
    return [one for one in OPERATIONS if header in dict(one.headers)]


def bodies(gateway: GatewayThread) -> dict[Schema, Any]:
    """A good body of each schema."""
    file_id = BatchApi(lambda: gateway.url).upload(lines(rows(1))).json["id"]
    window = {"endpoint": "/v1/completions", "completion_window": "24h"}
    return {
        "CompletionBody": {"model": "tales", "prompt": "x"},
        "ChatBody": {"model": "tales", "messages": [{"role": "user", "content": "x"}]},
        "ResponseBody": {"model": "tales", "input": "x"},
        "Job": {"model": "tales", "prompt": "x"},
        BatchBody: {"input_file_id": file_id, **window},
    }


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_that_names_nothing_is_refused_alike(gateway: GatewayThread, herd: Herd, key: str) -> None:
    good = bodies(gateway)
    asked = [(one.path, good[one.body]) for one in taking(KEY_HEADER)]
    asked.append(("/v1/completions", {"model": "tales", "prompt": ["x", "y"]}))
    found = [gateway.ask("POST", path, body, {KEY_HEADER: key}) for path, body in asked]
    assert len(found) == 6
    assert {one.status for one in found} == {400}
    (error,) = {str(one.error) for one in found}
    assert f"must be 1 to 255 characters long, got {len(key)}" in error
    assert found[0].error["param"] == KEY_HEADER
    assert not herd.redis.zcard(herd.ledger.key("pending"))


def test_the_longest_key_finds_the_same_at_each_route(gateway: GatewayThread, stand_in: StandIn) -> None:
    good = bodies(gateway)
    for number, one in enumerate(taking(KEY_HEADER)):
        name = {KEY_HEADER: f"{number}".ljust(255, "\u00e9")}
        first, second = (gateway.ask("POST", one.path, good[one.body], name) for _ in range(2))
        assert first.status == second.status == one.status, (one.path, first.raw)
        assert first.json["id"] == second.json["id"], one.path


def test_prompts_of_a_list_are_found_again_by_their_key(gateway: GatewayThread, stand_in: StandIn) -> None:
    for number in (2, 5):
        asked = {"model": "tales", "prompt": [f"{number} {index}" for index in range(number)]}
        name = {KEY_HEADER: f"order {number}"}
        before = len(stand_in.answered)
        first, second = (gateway.ask("POST", "/v1/completions", asked, name) for _ in range(2))
        assert first.json["choices"] == second.json["choices"]
        assert first.headers["x-job-id"] == second.headers["x-job-id"]
        assert len(stand_in.answered) == before + number
        conflict = gateway.ask("POST", "/v1/completions", {**asked, "max_tokens": 3}, name)
        assert (conflict.status, conflict.error["code"]) == (409, "job_conflict")


@pytest.mark.parametrize("header", [KEY_HEADER, GONE_HEADER, LAST_ID_HEADER])
def test_a_header_is_given_once(gateway: GatewayThread, herd: Herd, header: str) -> None:
    herd.submit("a")
    good = bodies(gateway)
    for one in taking(header):
        connection = gateway.connect()
        connection.putrequest(one.method.upper(), one.path.format(id="a"))
        raw = b"" if not one.body else str(good[one.body]).replace("'", '"').encode()
        for _ in range(2):
            connection.putheader(header, "stay" if header == GONE_HEADER else "1")
        connection.putheader("Content-Length", str(len(raw)))
        connection.endheaders(raw)
        with connection.getresponse() as answer:
            assert (answer.status, b"must be given once, got 2" in answer.read()) == (400, True), one.path
        connection.close()
