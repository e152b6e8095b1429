"""What each kind of server is told of a job, and what is refused by its name."""

import asyncio
import json
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sequence import Handling, Sequence
from llama_herd.worker.foreign.backend import (
    MOST_TOGETHER,
    Backend,
    JobRefused,
    ServerBusy,
    ServerFault,
    generated,
)
from llama_herd.worker.foreign.figures import PARTS_OF_LATE, ForeignFigures
from llama_herd.worker.foreign.http import Answer, ConnectionLost, HttpServer, ServerAway
from llama_herd.worker.foreign.llama_server import LlamaServer
from llama_herd.worker.foreign.model import BACKENDS
from llama_herd.worker.foreign.vllm import TokenStream, Vllm, num_together
from tests.worker.foreign.conftest import FIELDS

SERVER = HttpServer.at("http://127.0.0.1:1")
PAGE = Path(__file__).parents[3] / "docs/engines.md"
#: A value of each field of a job's sampling that is not the default.
OTHER: Mapping[str, Any] = {
    "n": 2,
    "max_tokens": 3,
    "min_tokens": 3,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "top_n_sigma": 1.0,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repeat_last_n": 64,
    "logit_bias": {5: 1.0},
    "seed": 5,
    "stop": ("x",),
    "stop_token_ids": (9,),
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 3,
    "prompt_logprobs": 1,
    "truncate_prompt_tokens": 4,
}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param](SERVER)


def sequence_of(num_ids: int = 0, **sampling: Any) -> Sequence:
    params = SamplingParams(**sampling)
    pieces = [b"a"] * 64
    sequence = Sequence(
        "job", [1, 2, 3], params, params.seed or 0, 1000, frozenset({2}), Detokenizer(pieces, params.stop)
    )
    sequence.replay([5] * num_ids)
    return sequence


def body_of(backend: Backend, sequence: Sequence) -> dict[str, Any]:
    assert isinstance(backend, Vllm | LlamaServer)
    return backend._body(sequence)


def test_each_field_of_a_job_is_passed_ours_or_refused(backend: Backend) -> None:
    assert sorted(backend.fields) == FIELDS
    assert set(OTHER) == set(SamplingParams.model_fields)


@pytest.mark.parametrize("field", OTHER)
def test_a_field_does_what_its_table_says(backend: Backend, field: str) -> None:
    others: dict[str, Any] = {"logprobs": True} if field == "top_logprobs" else {}
    job = GenerationJob(prompt="a", sampling=SamplingParams(**{field: OTHER[field]}, **others))
    use = backend.fields[f"sampling.{field}"]
    if use.how == "refused":
        with pytest.raises(InvalidJob, match=rf"sampling\.{field}: cannot be done by {backend.name}"):
            backend.check(job)
        return
    backend.check(job)
    changed = body_of(backend, sequence_of(**{field: OTHER[field]}, **others))
    plain = body_of(backend, sequence_of(**others))
    asks_apart = field == "prompt_logprobs"  # by a request of its own
    assert (changed != plain) == (use.how == "passed" and not asks_apart)


def test_the_page_names_what_of_the_sampling_each_server_cannot_do() -> None:
    (row,) = re.findall(r"^\| sampling \| (.+) \| (.+) \|$", PAGE.read_text(), re.M)
    for cell, backend in zip(row, BACKENDS.values(), strict=True):
        refused = {
            name.removeprefix("sampling.") for name, use in backend.fields.items() if use.how == "refused"
        }
        assert set(re.findall(r"`(\w+)`", cell)) == {name for name in refused if "logprobs" not in name}


def test_no_end_before_a_form_s_own_is_promised_where_the_server_would_hold_it_back() -> None:
    form = {"type": "json_object"}
    job = GenerationJob(prompt="a", response_format=form, sampling=SamplingParams(min_tokens=3))
    Vllm(SERVER).check(job)
    with pytest.raises(InvalidJob, match=r"sampling\.min_tokens: .* beside a form"):
        LlamaServer(SERVER).check(job)


def test_a_server_that_speaks_no_http_is_not_well(backend: Backend) -> None:
    async def check() -> None:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-x\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1") as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(ServerAway, match=r"not HTTP/1\.1"):
                await type(backend)(HttpServer.at(url)).check_health()

    asyncio.run(check())


def test_a_resumed_request_asks_for_what_is_left(backend: Backend) -> None:
    body = body_of(backend, sequence_of(16, max_tokens=20, min_tokens=18))
    assert body["prompt"] == [1, 2, 3] + [5] * 16
    assert body.get("max_tokens", body.get("n_predict")) == (4 if backend.name == "vllm" else 2)
    assert body.get("min_tokens", 2) == 2


def test_a_resumed_request_draws_other_noise(backend: Backend) -> None:
    seeds = [body_of(backend, sequence_of(num, seed=7))["seed"] for num in (0, 4, 16)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert seeds == [body_of(backend, sequence_of(num, seed=7))["seed"] for num in (0, 4, 16)]


def test_chunks_end_at_places_that_do_not_depend_on_where_one_begins() -> None:
    backend = LlamaServer(SERVER)
    ends = {num: num + backend._body(sequence_of(num, max_tokens=40))["n_predict"] for num in range(40)}
    assert sorted(set(ends.values())) == [4, 16, 32, 40]
    assert all(ends[num] == min(end for end in (4, 16, 32, 40) if end > num) for num in ends)


EVENT = b'data: {"choices":[{"token_ids":[%d],"finish_reason":%b}]}\n\n'
STREAM = EVENT % (5, b"null") + EVENT % (6, b'"stop"') + b"data: [DONE]\n\n"


#: The same as others write it: a proxy keeps the connection open by comments, and ends lines by two signs.
STREAMS = {
    "as vLLM writes it": STREAM,
    "with comments": b": ping\n\n" + STREAM.replace(b"\n\n", b"\n\n: ping - 2026\n\n"),
    "with CRLF": STREAM.replace(b"\n", b"\r\n"),
    "with fields": STREAM.replace(b"data: ", b"id: 7\nevent: message\nretry: 5\ndata:"),
}


@pytest.mark.parametrize("whole", STREAMS.values(), ids=STREAMS)
def test_a_stream_is_read_whatever_parts_it_comes_in(whole: bytes) -> None:
    for at in range(len(whole)):
        taken: list[SampledToken] = []
        stream = TokenStream(taken.extend)
        stream.write(whole[:at])
        stream.write(whole[at:])
        assert [token.token_id for token in taken] == [5, 6]
        assert stream.outcome().finish_reason == "stop"


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (b"", ConnectionLost),
        (b'data: {"error": {"message": "the engine is dead", "code": 500}}\n\n', ServerFault),
        (b'data: {"error": {"message": "out of vocabulary", "code": 400}}\n\n', JobRefused),
        (EVENT % (6, b'"abort"'), ServerFault),
    ],
    ids=["without an end", "a failure", "a refusal", "aborted"],
)
def test_a_stream_without_an_end_is_lost_and_errors_in_it_are_errors(
    told: bytes, error: type[Exception]
) -> None:
    stream = TokenStream(lambda _: None)
    stream.write(EVENT % (5, b"null") + told + b"data: [DONE]\n\n")
    with pytest.raises(error):
        stream.outcome()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, JobRefused),
        (404, ServerAway),
        (500, ServerFault),
        (502, ConnectionLost),
        (503, ServerBusy),
        (504, ConnectionLost),
    ],
)
def test_a_job_is_to_blame_for_what_is_its_own_alone(status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="why"):
        generated(Answer(status, b'{"error": {"message": "why"}}'))


def test_a_text_without_ids_is_a_failure_and_no_empty_answer() -> None:
    told = b'data: {"choices":[{"text":"a","logprobs":null,"finish_reason":"stop"}]}\n\n'
    with pytest.raises(ServerFault, match="without the ids of its tokens"):
        TokenStream(lambda _: None).write(told)


def test_the_gap_of_late_is_that_of_each_token_and_follows_the_server() -> None:
    figures = ForeignFigures()
    figures.note_tokens(3, None)  # the first of an output
    assert figures.recent_gap_s == inf
    figures.note_tokens(2, 0.4)
    assert figures.recent_gap_s == pytest.approx(0.2)
    for _ in range(5 * PARTS_OF_LATE):
        figures.note_tokens(4, 0.4)
    assert figures.recent_gap_s == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    ("gather_s", "gap_s", "num"),
    [(0.0, 0.01, 1), (0.05, 0.01, 2), (0.05, 0.02, 1), (0.2, 0.01, 10), (10.0, 0.01, MOST_TOGETHER)],
)
def test_as_many_tokens_come_together_as_are_drawn_in_half_the_time_between_two_events(
    gather_s: float, gap_s: float, num: int
) -> None:
    sequence = sequence_of()
    sequence.handling = Handling(gather_s=gather_s)
    assert num_together(sequence, inf) == 1  # until it is known how fast the server is
    assert num_together(sequence, gap_s) == num


def test_scores_are_read_by_ids() -> None:
    taken: list[SampledToken] = []
    top = {"token_id:5": -2.0, "token_id:6": -1.0}
    told = {"token_logprobs": [-0.5], "tokens": ["token_id:5"], "top_logprobs": [top]}
    event = {"choices": [{"token_ids": [5], "logprobs": told}]}
    TokenStream(taken.extend, num_top=1).write(f"data: {json.dumps(event)}\n\n".encode())
    assert taken == [SampledToken(5, -0.5, ((6, -1.0),))]
