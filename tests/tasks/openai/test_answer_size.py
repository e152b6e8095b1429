"""How long an answer can become: estimated before, and never far from what is written."""

import json
from random import Random
from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.tasks.openai.answer_size import MAX_ESTIMATED_BYTES, check_answer_size, estimated_bytes
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS, Endpoint, RequestBody
from llama_herd.tasks.openai.response import JoinedAnswer
from llama_herd.tasks.protocol.events import End, Event, Started, Token
from llama_herd.tasks.protocol.job import MAX_SCORES, GenerationJob
from llama_herd.tasks.protocol.json_values import ITEMS, json_pieces, json_text
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.sampling import MAX_CHOICES, MAX_TOP_LOGPROBS
from llama_herd.tasks.settings import Settings

SETTINGS = Settings.read(redis_url="redis://localhost")
#: Four bytes, as an estimate takes them for a token.
WORD = "abc "


def jobs_of(endpoint: Endpoint, **fields: Any) -> list[GenerationJob]:
    return RequestBody(endpoint, fields).jobs(SETTINGS, 256)


def played(job: GenerationJob) -> list[Event]:
    """The events of a job whose outputs all have their full length, and their scores."""
    asked, num_prompt = job.sampling, job.estimated_prompt_tokens
    scores, top = tuple, tuple((number, -10.123456 - number) for number in range(asked.top_logprobs))
    of_prompt = asked.prompt_logprobs
    beside = tuple((number, -10.123456 - number) for number in range(of_prompt or 0))
    same: dict[str, Any] = {"job": "j", "epoch": 1}
    echoed: dict[str, Any] = {}
    if job.echo:
        echoed = {"prompt_ids": tuple(range(num_prompt)), "prompt_text": WORD * num_prompt}
    events: list[Event] = [
        Started(at_ms=1, seq=1, attempt=1, worker="w", model="m", seed=1, n=asked.n, **echoed, **same)
    ]
    pieces = {number: f"ab{number:02}" for number in range(max(num_prompt, asked.max_tokens, 32))}
    for choice in range(asked.n):
        own: dict[str, Any] = {}
        if asked.logprobs:
            own = {
                "logprobs": scores([-10.123456]) * asked.max_tokens,
                "top_logprobs": (top,) * asked.max_tokens,
            }
        if of_prompt is not None and not choice:
            own |= {"prompt_logprobs": scores([-10.123456]) * (num_prompt - 1)}
            own |= {"top_prompt_logprobs": (beside,) * (num_prompt - 1)}
        ids = tuple(range(asked.max_tokens))
        words = {"ids": ids, "text": WORD * len(ids), "choice": choice, "pieces": pieces}
        events.append(Token(seq=len(events) + 1, i=0, **words, **own, **same))
    return [*events, End(seq=len(events) + 1, finish_reason="length", n=1, attempts=1, **same)]


def whole(endpoint: Endpoint, jobs: list[GenerationJob]) -> bytes:
    answer = JoinedAnswer(endpoint, "j", "m")
    for job in jobs:
        answer.add(Result.from_events(played(job)))
    return b"".join(answer.pieces())


def drawn(rng: Random) -> tuple[Endpoint, dict[str, Any]]:
    """Fields of a request, each of which makes its answer longer."""
    size: dict[str, Any] = {"n": rng.randint(1, MAX_CHOICES), "max_tokens": rng.choice((1, 7, 40))}
    if rng.random() < 0.5:
        top = rng.choice((0, 1, 5, MAX_TOP_LOGPROBS))
        chat = {"messages": [{"role": "user", "content": WORD * rng.randint(1, 40)}]}
        return CHAT, {**chat, **size, **rng.choice(({}, {"logprobs": True, "top_logprobs": top}))}
    prompts = [WORD * rng.randint(1, 40) for _ in range(rng.choice((1, 2, 9)))]
    asked = {"echo": rng.random() < 0.5, "logprobs": rng.choice((None, 1, 5, MAX_TOP_LOGPROBS))}
    return COMPLETIONS, {"prompt": prompts, **size, **asked}


@pytest.mark.long
def test_an_answer_is_about_as_long_as_was_estimated() -> None:
    """The words around outputs and prompts do not count."""
    rng = Random(1)
    for _ in range(60):
        endpoint, fields = drawn(rng)
        jobs = jobs_of(endpoint, **fields)
        estimated = sum(estimated_bytes(endpoint, job) for job in jobs)
        around = 400 * (1 + len(jobs) * jobs[0].sampling.n)
        assert len(whole(endpoint, jobs)) <= 1.5 * estimated + around, fields


@pytest.mark.parametrize("name", ["prompt", "n", "max_tokens", "logprobs", "echo"])
def test_each_field_that_multiplies_counts(name: str) -> None:
    fields: dict[str, Any] = {"prompt": [WORD * 20], "n": 2, "max_tokens": 8, "logprobs": 2, "echo": False}
    more = {"prompt": [WORD * 20] * 3, "n": 4, "max_tokens": 20, "logprobs": 9, "echo": True}
    least, most = jobs_of(COMPLETIONS, **fields), jobs_of(COMPLETIONS, **{**fields, name: more[name]})
    assert check_answer_size(COMPLETIONS, least) < check_answer_size(COMPLETIONS, most)
    assert len(whole(COMPLETIONS, least)) < len(whole(COMPLETIONS, most))


def test_a_product_that_is_too_large_names_its_fields_and_both_numbers() -> None:
    jobs = jobs_of(COMPLETIONS, prompt=["x" * 220] * 256, n=8, echo=True, logprobs=20, max_tokens=1)
    with pytest.raises(InvalidJob) as refused:
        check_answer_size(COMPLETIONS, jobs)
    told = str(refused.value)
    assert str(sum(estimated_bytes(COMPLETIONS, job) for job in jobs)) in told
    assert str(MAX_ESTIMATED_BYTES) in told
    assert "Fix: less of prompt, n, echo, logprobs, max_tokens" in told


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20}),
        (COMPLETIONS, {"prompt": "x", "logprobs": 20}),
    ],
)
def test_a_job_s_own_scores_are_bounded(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=f"688128 scores .* at most {MAX_SCORES}. Fix: a lower n, "):
        jobs_of(endpoint, **fields, n=8, max_tokens=4096)


def random_json(rng: Random, depth: int = 4) -> Any:
    kind = rng.randrange(6 if depth else 4)
    if kind < 4:
        return rng.choice((None, True, rng.random(), rng.randrange(10**9), 'é\n"\u2028', ""))
    num = rng.choice((0, 1, 3, ITEMS, ITEMS + 1, 2 * ITEMS)) if depth > 3 else rng.randrange(4)
    items = [random_json(rng, depth - 1) for _ in range(num)]
    return items if kind == 4 else {f"k{number}": item for number, item in enumerate(items)}


@pytest.mark.long
def test_pieces_are_the_same_json() -> None:
    rng = Random(2)
    for _ in range(100):
        value = {"a": random_json(rng), "b": random_json(rng)}
        assert (
            "".join(json_pieces(value))
            == json_text(value)
            == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )


def test_no_piece_is_long() -> None:
    value = {"content": [{"token": "a", "top_logprobs": [[]] * 20}] * 5000}
    assert max(piece.count('"token"') for piece in json_pieces(value)) == ITEMS
