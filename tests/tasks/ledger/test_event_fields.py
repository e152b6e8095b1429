"""In whatever order the fields of a job's events stand, everything reads the same."""

import json
from random import Random
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.job_reads import FIRST
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import PROMPT_FIELDS, SCORE_FIELDS, End, Event, Failure, Started, Token
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from tests.tasks.herd import Herd

pytestmark = pytest.mark.redis

#: What a search for the end of a field could take for one.
ODD = 'quote " bracket ]}[{ back\\slash, "logprobs":[1], "pieces":{"x":"\\'
HEAD: dict[str, Any] = {"job": "a", "epoch": 1}
INFO = TokenizerInfo(
    tokenizer_class=ODD, add_bos_token=True, add_eos_token=False, model_max_length=512, chat_template=ODD
)
PROMPT: dict[str, Any] = {
    "prompt_ids": (1, 2),
    "prompt_text": ODD,
    "context_tokens": 512,
    "pieces": {1: "]", 2: '{"'},
    "tokenizer_info": INFO,
}
SCORES = {
    "logprobs": (-0.25, -9999.0),
    "top_logprobs": (((1, -0.5), (2, -1.0)), ((3, -2.0),)),
    "prompt_logprobs": (-1.0,),
    "top_prompt_logprobs": (((7, -1.5),),),
    "pieces": {5: "[", 6: '"}', 7: "\\"},
}
CALLS: Any = ({"index": 0, "id": "abcdefghi", "name": "f", "arguments": json.dumps({"pieces": [ODD]})},)
EVENTS: list[Event] = [
    Started(at_ms=1, seq=1, attempt=1, worker="w", model="tales", seed=2**60, **HEAD, **PROMPT),
    Token(seq=2, i=0, ids=(5, 6), text=ODD, tool_calls=CALLS, content=ODD, **HEAD, **SCORES),
    Token(seq=3, i=2, ids=(), text="", reasoning="\u00e9 \U0001f600", **HEAD),
    End(
        **{**HEAD, "seq": 4, "finish_reason": "error", "n": 2, "attempts": 1},
        error=Failure(code="model_error", message=ODD),
    ),
]


def shuffled(event: str, rng: Random) -> str:
    fields = list(json.loads(event).items())
    rng.shuffle(fields)
    return json.dumps(dict(fields), separators=(",", ":"), ensure_ascii=False)


def store(herd: Herd, rng: Random) -> None:
    """Write all events with their fields in another order."""
    herd.redis.delete(herd.ledger.events_key("a"))
    herd.redis.hset(herd.ledger.job_key("a"), mapping={"state": "failed", "n": 2})
    for event in EVENTS:
        herd.redis.xadd(herd.ledger.events_key("a"), {"e": shuffled(event.to_json(), rng)}, f"{event.seq}-0")


def test_the_events_here_have_all_fields_that_are_left_out_for_a_worker_that_goes_on() -> None:
    assert PROMPT.keys() == PROMPT_FIELDS
    assert SCORES.keys() == SCORE_FIELDS


@pytest.mark.parametrize("seed", range(30))
def test_whoever_reads_events_reads_the_same(herd: Herd, redis_server: EmbeddedRedis, seed: int) -> None:
    herd.submit("a")
    store(herd, Random(seed))
    assert herd.events("a") == EVENTS

    def part(*, with_scores: bool) -> list[Event]:
        return run_call(
            herd.redis, herd.ledger.read_part("a", FIRST, 10**6, 10**4, with_scores=with_scores)
        ).events

    assert part(with_scores=True) == EVENTS
    without = part(with_scores=False)
    assert without == [
        EVENTS[0].model_copy(update=dict.fromkeys(PROMPT_FIELDS)),
        EVENTS[1].model_copy(update=dict.fromkeys(SCORE_FIELDS)),
        *EVENTS[2:],
    ]
    told, expected = RecordedOutputs.from_events(without), RecordedOutputs.from_events(EVENTS)
    assert told.ids == expected.ids
    assert told.text_hash.digest() == expected.text_hash.digest()
    with Client(redis_server.url) as client:
        outcome = client.history("a")
    assert outcome.events == EVENTS


@pytest.mark.parametrize("seed", range(10))
def test_the_record_tells_of_an_end_in_whatever_order_that_tells_it(running: Herd, seed: int) -> None:
    """The script that records an end looks into it."""
    (end,) = (event for event in EVENTS if isinstance(event, End))
    entry = EmitEntry.from_event(end.model_copy(update={"seq": 3}), 2)
    entry = entry._replace(event=shuffled(entry.event, Random(seed)))
    assert running.kinds("one", entry) == ["ok"]
    record = run_call(running.redis, running.ledger.record("a"))
    assert record is not None
    assert (record.finish_reason, record.error) == ("error", end.error)
