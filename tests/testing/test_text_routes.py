"""Whatever stands in a field of a request for vectors or ranks, it is answered, or refused by its name."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.gateway.openapi import document
from llama_herd.tasks.gateway.tenant_client import TenantClient
from llama_herd.testing import FakeHerd
from tests.chaos.harness.patience import wait_until
from tests.logged import listening
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.redis, pytest.mark.worker]

GOOD: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "tales", "input": "a"},
    "/v1/rerank": {"model": "tales", "query": "a", "documents": ["a", "b"]},
}
SCHEMAS = {"/v1/embeddings": "EmbeddingBody", "/v1/rerank": "RankBody"}
#: As JSON: some of these no Python value becomes.
ODD = [
    *("null", "true", "0", "-1", "1.5", "1e400", "1e308", "NaN", "-Infinity", "9" * 400, "2147483648"),
    *('""', '" "', '"a"', r'"\u0000"', r'"a\ud800"', f'"{"x" * 300_000}"'),
    *("[]", "[[]]", '[""]', '["a", 1]', '[1, "a"]', "[true]", "[[1], [true]]", "[1.5]", "[-1]", "[null]"),
    *("[2147483648]", f"[{2**63}]", "[[1], []]", "[[[1]]]", r'["a", "\ud800"]', r'["\u200b"]', "[{}]"),
    *(
        '[{"text": "a"}]',
        '[{"text": 1}]',
        '[{"text": "a", "b": 1}]',
        "{}",
        '{"text": "a"}',
        "[" * 200 + "]" * 200,
    ),
    *(json.dumps([one] * 2049) for one in ("a", [1], {"text": "a"})),
]


#: What is said of a body that is no JSON, or too much of it, of a model that nobody serves, and of a query
#: that is too long beside any document.
OF_ALL = ("the body must ", "no worker ", "documents: all texts together ")


@pytest.fixture
def gateway(herd: FakeHerd) -> Iterator[GatewayThread]:
    with GatewayThread(herd.url) as gateway:
        yield gateway


def test_an_outage_behind_an_answer_is_told_as_one(herd: FakeHerd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is gone when the jobs of vectors that were sent are to be purged."""

    async def purge(*_: object) -> None:
        raise RedisUnavailable("Redis is away")

    monkeypatch.setattr(TenantClient, "purge", purge)
    with GatewayThread(herd.url, request_log="all") as gateway, listening(logging.INFO) as logged:
        path = "/v1/embeddings"
        assert gateway.ask("POST", path, GOOD[path]).status == 200
        wait_until(lambda: any(hasattr(one, "fields") for one in logged.records), "it is told")
    (told,) = [vars(one)["fields"] for one in logged.records if hasattr(one, "fields")]
    assert (told["status"], told["error"], told["cause"]) == (200, "queue_unavailable", "Redis is away")


@pytest.mark.parametrize("path", GOOD)
def test_every_field_takes_or_refuses_every_value(gateway: GatewayThread, path: str) -> None:
    fields = [*document()["components"]["schemas"][SCHEMAS[path]]["properties"], "other"]
    assert GOOD[path].keys() <= set(fields)
    for name in fields:
        for value in ODD:
            parts = {**{key: json.dumps(good) for key, good in GOOD[path].items()}, name: value}
            body = f"{{{', '.join(f'{json.dumps(key)}: {part}' for key, part in parts.items())}}}"
            answer = gateway.ask("POST", path, body.encode())
            shown = (name, value[:40], answer.raw[:200])
            assert answer.status in (200, 400, 404), shown
            if answer.status != 200:
                error = answer.json["error"]
                assert error["message"].startswith((name, *OF_ALL)), shown
                assert len(answer.raw) < 1000
