"""A worker reads what workers have written of a job, however long, and no more of anything else."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import UnreadableReply
from llama_herd.tasks.protocol.events import Event, Started, Token, Vectors
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from llama_herd.tasks.settings import Settings
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.stream_reader import PART_BYTES, StreamReader
from tests.python_memory import peak_bytes

pytestmark = [pytest.mark.redis, pytest.mark.long]

LEDGER = Ledger()
JOB = "job"
#: Of a forged stream, and what reading it may take.
FORGED_BYTES, MAX_BYTES = 25_000_000, 13_000_000


@pytest.fixture
def reader(redis: Redis) -> StreamReader:
    return StreamReader(redis, LEDGER, max_tokens=4096, max_prompt_tokens=8192)


def write(redis: Redis, events: Sequence[Event], n: int) -> None:
    """A stream, and a record that says that it has `n` tokens."""
    redis.hset(LEDGER.job_key(JOB), "n", str(n))
    with redis.pipeline(transaction=False) as pipeline:
        for event in events:
            pipeline.xadd(LEDGER.events_key(JOB), {"e": event.to_json()}, f"{event.seq}-0")
        pipeline.execute()


def token(seq: int, i: int, ids: Sequence[int], text: str = "", **fields: Any) -> Token:
    return Token(seq=seq, job=JOB, epoch=1, i=i, ids=tuple(ids), text=text, **fields)


def started(seq: int) -> Started:
    return Started(at_ms=1, seq=seq, job=JOB, epoch=seq, attempt=seq, worker="w", model="m", seed=7)


def scored(seq: int, i: int, num: int, choice: int | None = None) -> Token:
    """An event of `num` tokens with all scores that there are."""
    pairs = tuple(((token_id, -123.456789), (128_000, -9999.0)) for token_id in range(num))
    scores = tuple(-0.123456789 for _ in range(num))
    text = ',"logprobs":[ \u00e9\U0001f600' * num
    return token(
        seq, i, range(i, i + num), text, choice=choice, logprobs=scores, top_logprobs=pairs
    )  # fmt: skip


def long_job(num_tokens: int, num_choices: int, per_event: int) -> Iterator[Event]:
    """All outputs side by side; another attempt began half way."""
    seq = 0
    for i in range(0, num_tokens, per_event):
        if i in (0, num_tokens // 2):
            yield started(seq := seq + 1)
        for choice in range(num_choices):
            yield scored(seq := seq + 1, i, per_event, choice)


def test_a_long_job_of_our_own_is_gone_on_with(redis: Redis) -> None:
    num_tokens, num_choices = 100_000, 2
    events = list(long_job(num_tokens, num_choices, per_event=500))
    write(redis, events, num_tokens * num_choices)
    reader = StreamReader(redis, LEDGER, num_tokens, 8192)
    recorded = RecordedOutputs.from_events(reader.events(JOB, with_scores=False))
    assert recorded.ids == {choice: list(range(num_tokens)) for choice in range(num_choices)}
    assert recorded.text_hash.digest() == RecordedOutputs.from_events(events).text_hash.digest()


def test_all_events_come_as_they_were_written_over_many_parts(redis: Redis, reader: StreamReader) -> None:
    events = list(long_job(4096, 2, per_event=64))
    write(redis, events, 2 * 4096)
    assert sum(len(event.to_json()) for event in events) > 4 * PART_BYTES
    assert list(reader.events(JOB)) == events


@pytest.mark.parametrize("num_ids", [1, 4096])
def test_an_event_with_all_scores_is_read_whole_and_gone_on_with(
    redis: Redis, reader: StreamReader, num_ids: int
) -> None:
    """Also one of which the prompt's scores are the most, or all."""
    prompt = {"prompt_logprobs": (-1.0,) * 8000, "top_prompt_logprobs": (((1, -1.0),) * 20,) * 8000}
    events = [token(1, 0, [5], "a", **prompt), scored(2, 1, num_ids)]
    write(redis, events, 1 + num_ids)
    assert list(reader.events(JOB)) == events
    assert (
        RecordedOutputs.from_events(reader.events(JOB, with_scores=False)).ids
        == RecordedOutputs.from_events(events).ids
    )


def test_a_start_with_the_longest_prompt_is_read_whole_and_gone_on_with(redis: Redis) -> None:
    """One of which nothing was computed: each of its bytes is a token."""
    num = Settings.model_fields["max_prompt_bytes"].default
    told = {"prompt_ids": tuple(range(num)), "prompt_text": '"' * num, "context_tokens": 512}
    start = started(1).model_copy(update={**told, "pieces": {5: "x"}})
    events: list[Event] = [start, token(2, 0, [5], "a")]
    write(redis, events, 1)
    reader = StreamReader(redis, LEDGER, 16, 16, num)
    assert list(reader.events(JOB)) == events
    assert list(reader.events(JOB, with_scores=False)) == [started(1), events[1]]


def test_the_vectors_of_the_most_texts_are_read_whole_and_gone_on_with(redis: Redis) -> None:
    """Of a model with wide ones; one that has none lets no stream be as long."""
    num_bytes = 4 * 4096
    vector = b64encode(bytes(num_bytes)).decode()
    spans = [range(first, first + 16) for first in range(0, MAX_TEXTS, 16)]
    events: list[Event] = [
        Vectors(seq=seq, job=JOB, epoch=1, texts=tuple(span), vectors=(vector,) * len(span))
        for seq, span in enumerate(spans, 1)
    ]
    write(redis, events, MAX_TEXTS)
    reader = StreamReader(redis, LEDGER, 4096, 8192, vector_chars=len(vector))
    assert list(reader.events(JOB)) == events
    recorded = RecordedOutputs.from_events(reader.events(JOB, with_scores=False))
    assert recorded.vectors == frozenset(range(MAX_TEXTS))
    narrow = StreamReader(redis, LEDGER, 16, 16)
    with pytest.raises(UnreadableReply, match="more than"):
        list(narrow.events(JOB))


def test_nothing_is_read_of_a_job_that_has_said_nothing(reader: StreamReader) -> None:
    assert list(reader.events(JOB)) == []


def forged(kind: str) -> list[Token]:
    """A stream that no worker writes."""
    match kind:
        case "one text":
            return [token(1, 0, [1], "x" * FORGED_BYTES)]
        case "one text of quotes":
            return [token(1, 0, [1], ',"' * (FORGED_BYTES // 3))]
        case "many texts":
            return [token(seq, 0, [1], "x" * 100_000) for seq in range(1, FORGED_BYTES // 100_000)]
        case _:
            return [token(seq, 0, [1] * 500, "") for seq in range(1, FORGED_BYTES // 1000)]


@pytest.mark.parametrize(
    ("kind", "with_scores"),
    [
        *[("one text", True), ("many texts", False), ("many ids", False)],
        *(pytest.param(kind, True, marks=pytest.mark.slow) for kind in ("many texts", "many ids")),
        *(pytest.param("one text of quotes", is_so, marks=pytest.mark.slow) for is_so in (True, False)),
        pytest.param("one text", False, marks=pytest.mark.slow),
    ],
)
def test_a_forged_stream_is_refused_before_it_takes_memory(
    redis: Redis, reader: StreamReader, kind: str, with_scores: bool
) -> None:
    write(redis, forged(kind), n=200)

    def read_it() -> None:
        with pytest.raises(ResponseError, match="events of this job"):
            list(reader.events(JOB, with_scores=with_scores))

    assert peak_bytes(read_it) < MAX_BYTES


def test_a_record_that_says_anything_of_its_length_lengthens_nothing(
    redis: Redis, reader: StreamReader
) -> None:
    write(redis, [token(1, 0, [1] * 40_000, "")], n=10**15)
    with pytest.raises(UnreadableReply, match="more than"):
        list(reader.events(JOB))


@pytest.mark.parametrize("n", ["", "many", "nan"])
def test_a_record_that_says_no_length_is_one_of_no_tokens(redis: Redis, reader: StreamReader, n: str) -> None:
    write(redis, [started(1), token(2, 0, [1], "")], n=1)
    redis.hset(LEDGER.job_key(JOB), "n", n)
    with pytest.raises(ResponseError):
        list(reader.events(JOB))


@pytest.mark.parametrize(
    "fields", [{"x": "x"}, {"e": "{}", "x": "x"}, {"x": "x", "e": "{}"}, {"e": "no event"}]
)
def test_entries_that_workers_do_not_write_are_refused(
    redis: Redis, reader: StreamReader, fields: dict[Any, Any]
) -> None:
    write(redis, [started(1)], n=0)
    redis.xadd(LEDGER.events_key(JOB), fields)
    with pytest.raises(ResponseError, match="Fix: purge"):
        list(reader.events(JOB))


def test_redis_says_what_lies_in_the_place_of_the_stream(redis: Redis, reader: StreamReader) -> None:
    redis.set(LEDGER.events_key(JOB), "x")
    with pytest.raises(ResponseError, match=r"^WRONGTYPE"):
        list(reader.events(JOB))
