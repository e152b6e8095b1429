"""Answers that are a product of fields: refused before anything is computed, and made beside the loop."""

import json
import threading
from typing import Any

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks.gateway import completion_answer
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.openai import response
from llama_herd.tasks.openai.response import choices_of
from llama_herd.tasks.protocol.events import Token
from llama_herd.tasks.protocol.json_values import json_pieces
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import QUEUE, Herd, end, started

pytestmark = pytest.mark.redis

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        (COMPLETIONS, "prompt", {"prompt": ["x" * 220] * 256, "n": 8, "echo": True, "logprobs": 20}),
        (COMPLETIONS, "prompt", {"prompt": ["x" * 9000] * 256, "n": 8, "echo": True, "max_tokens": 0}),
        (COMPLETIONS, "prompt", {"prompt": ["x"] * 256, "n": 8, "max_tokens": 4096}),
        (CHAT, "n", {"messages": MESSAGES, "n": 8, "max_tokens": 1500, "logprobs": True, "top_logprobs": 20}),
    ],
)
def test_a_product_of_fields_is_refused_before_anything_is_computed(
    gateway: GatewayThread, herd: Herd, path: str, param: str, body: dict[str, Any], is_stream: bool
) -> None:
    found = gateway.ask("POST", path, {"model": "tales", "stream": is_stream, **body})
    assert (found.status, found.error["code"], found.error["param"]) == (400, "invalid_job", param)
    assert "16777216. Fix: less of " in found.error["message"]
    assert not herd.redis.llen(QUEUE)
    assert not gateway.context.concurrency.num_taken


def test_a_long_answer_takes_a_slot_for_each_mebibyte(redis_url: str, herd: Herd) -> None:
    body = {"model": "tales", "messages": MESSAGES, "n": 8, "max_tokens": 1024, "logprobs": True}
    with GatewayThread(redis_url) as gateway:
        connection = gateway.connect()
        connection.request("POST", CHAT, json.dumps({**body, "top_logprobs": 19}))
        wait_until(lambda: gateway.context.concurrency.num_taken == 13, "12.5 MiB take 13 slots")
        connection.close()
        wait_until(lambda: not gateway.context.concurrency.num_taken, "they are given back")


def test_an_answer_longer_than_it_could_be_is_not_given(
    gateway: GatewayThread, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_answer, "MAX_BYTES", 300)
    found = gateway.ask("POST", COMPLETIONS, {"model": "tales", "prompt": ["a", "b", "c", "d", "e"]})
    assert (found.status, found.error["code"]) == (400, "answer_too_long")
    assert (
        "more than 300 bytes. Fix: ask for fewer tokens, scores or prompts at once" in found.error["message"]
    )
    assert gateway.ask("POST", COMPLETIONS, {"model": "tales", "prompt": "a"}).status == 200


def test_long_answers_are_made_beside_the_loop(
    gateway: GatewayThread, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def seen(*asked: Any) -> Any:
        threads.append(threading.current_thread().name)
        return choices_of(*asked)

    monkeypatch.setattr(response, "choices_of", seen)
    short = {"model": "tales", "prompt": ["a", "b"]}
    assert gateway.ask("POST", COMPLETIONS, short).status == 200
    assert not any("long-answers" in name for name in threads)
    threads.clear()
    long = {**short, "max_tokens": 2048, "logprobs": 5}
    assert gateway.ask("POST", COMPLETIONS, long).status == 200
    assert len(threads) == 2
    assert all("long-answers" in name for name in threads)


@pytest.mark.long
def test_the_scores_of_a_prompt_are_streamed_from_beside_the_loop(
    gateway: GatewayThread, herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each output's copy of them is a part of its own: no two of them are held."""
    threads: list[str] = []

    def seen(value: Any) -> Any:
        threads.append(threading.current_thread().name)
        return json_pieces(value)

    monkeypatch.setattr(completion_answer, "json_pieces", seen)
    asked = {"model": "tales", "prompt": "x" * 400, "n": 3, "echo": True, "logprobs": 1, "stream": True}
    with gateway.send("POST", COMPLETIONS, asked) as answer:
        job_id = str(answer.getheader("X-Job-Id"))
        herd.claimed(job_id)
        start = started(job_id)
        told = json.loads(start.event) | {"n": 3, "prompt_ids": [7] * 100, "prompt_text": "x" * 400}
        scores = {"prompt_logprobs": (-1.0,) * 99, "top_prompt_logprobs": (((7, -1.0),),) * 99}
        first = Token(
            seq=2, job=job_id, epoch=1, i=0, ids=(5,), text="a", choice=0, logprobs=(-1.0,), **scores
        )
        herd.emit(
            "one", start._replace(event=json.dumps(told)), EmitEntry.from_event(first, 0), end(job_id, 3, 1)
        )
        chunks = [event.json for event in events_of(answer) if event.data != "[DONE]"]
    assert [one["choices"][0]["index"] for one in chunks[:3]] == [0, 1, 2]
    assert all(len(one["choices"][0]["logprobs"]["tokens"]) == 100 for one in chunks[:3])
    assert threads
    assert all("long-answers" in name for name in threads)
