"""What jobs may ask of a worker in front of a server, and how they end."""

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Started
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.foreign.backend import MOST_TOGETHER
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.foreign_server import ANSWER
from tests.local.processes import WorkerProcess
from tests.stand_in import StandIn

pytestmark = [pytest.mark.redis, pytest.mark.worker]

KEY = "a-secret-key"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OTHER_SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}


class Served:
    """A server of one kind, a worker in front of it, and a client."""

    def __init__(self, kind: str, server: StandIn, client: Client) -> None:
        self.kind, self.server, self.client = kind, server, client

    def run(self, prompt: str = "Once upon a time", **job: Any) -> Result:
        job.setdefault("sampling", GREEDY)
        source: dict[str, Any] = {} if "messages" in job else {"prompt": prompt}
        job_id = self.client.submit(**source, **job)
        return self.client.result(job_id, timeout_s=PATIENCE_S)

    @property
    def num_hits(self) -> int:
        own = (one for one in self.client.workers() if one.name == f"{self.kind}@test")
        return next(own).prefix_cache_hits


@pytest.fixture(scope="module", params=["vllm", "llama-server"])
def served(
    request: pytest.FixtureRequest, server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder, kind = tmp_path_factory.mktemp(request.param), request.param
    with StandIn(BUNDLED_MODEL, folder / "bodies.log", step_s=0.005, key=KEY, context=512) as stand_in:
        own: dict[str, Any] = {"engine": kind, "engine_url": stand_in.url, "engine_api_key": KEY, "slots": 4}
        with (
            WorkerProcess(server.url, BUNDLED_MODEL, kind, folder / "worker.log", **own) as worker,
            Client(server.url) as client,
        ):
            yield Served(kind, stand_in, client)
            assert KEY not in worker.log
            assert "Traceback" not in worker.log


def test_a_stop_string_is_ours(served: Served) -> None:
    whole = served.run()
    assert whole.finish_reason == "length"
    word = whole.text.split()[3]
    stopped = served.run(sampling={**GREEDY, "stop": [word]})
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", word)
    assert stopped.text == whole.text[: whole.text.index(word)]
    assert not any("stop" in body for body in served.server.bodies)


def test_a_chat_goes_by_our_template_and_an_end_is_an_end(served: Served) -> None:
    asked = {"max_tokens": 400, "seed": 1}  # the stand-in ends one of a hundred tokens: not always within 400
    result = served.run(messages=[{"role": "user", "content": "Hello"}], sampling=asked)
    assert result.finish_reason == "stop"
    assert isinstance(served.server.prompts[-1], list)


def test_each_output_has_a_request_and_noise_of_its_own(served: Served) -> None:
    asked = {"n": 2, "max_tokens": 12, "seed": 5, "ignore_eos": True}
    result, again = served.run(sampling=asked), served.run(sampling=asked)
    texts = [choice.text for choice in result.choices or ()]
    assert texts[0] != texts[1]
    assert [choice.text for choice in again.choices or ()] == texts


def test_log_probabilities_come_with_the_tokens_or_are_refused(served: Served) -> None:
    asked = {"temperature": 0.0, "max_tokens": 6, "logprobs": True, "top_logprobs": 1, "ignore_eos": True}
    result = served.run(sampling=asked)
    if served.kind == "llama-server":
        assert result.error is not None
        assert "sampling.logprobs: cannot be done by llama-server" in result.error.message
        return
    assert result.logprobs is not None
    assert len(result.logprobs) == 6


def test_tokens_that_may_be_gathered_come_together_and_are_the_same(served: Served) -> None:
    scores = {"logprobs": True} if served.kind == "vllm" else {}
    asked = {**GREEDY, **scores, "max_tokens": 50}
    each, gathered = (served.run(sampling=asked, flush_ms=ms) for ms in (0, 10_000))
    assert (each.ids, each.text, each.logprobs) == (gathered.ids, gathered.text, gathered.logprobs)
    intervals = [body.get("stream_interval") for body in served.server.bodies[-2:]]
    assert intervals == ([None, MOST_TOGETHER] if served.kind == "vllm" else [None, None])


def test_a_prompt_is_scored_or_refused(served: Served) -> None:
    asked = {"temperature": 0.0, "max_tokens": 0, "prompt_logprobs": 1}
    result = served.run(sampling=asked)
    if served.kind == "llama-server":
        assert result.error is not None
        assert "sampling.prompt_logprobs: cannot be done by llama-server" in result.error.message
        return
    assert result.error is None
    assert result.finish_reason == "length"


def test_a_form_is_published_whole_and_checked_here(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    asked = {"temperature": 0.0, "max_tokens": 20}
    result = served.run(response_format=form, sampling=asked)
    assert (result.text.strip(), result.finish_reason) == (ANSWER, "stop")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": OTHER_SCHEMA}}
    wrong = served.run(response_format=form, sampling=asked)
    assert wrong.error is not None
    assert (wrong.error.code, wrong.text) == ("grammar_mismatch", "")


def test_what_the_server_cannot_do_is_refused_by_name(served: Served) -> None:
    field = {"vllm": "top_n_sigma", "llama-server": "presence_penalty"}[served.kind]
    num = len(served.server.prompts)
    result = served.run(sampling={field: 1.0})
    assert result.error is not None
    assert f"sampling.{field}: cannot be done by {served.kind}" in result.error.message
    assert result.error.code == "invalid_job"
    assert len(served.server.prompts) == num


def test_texts_are_refused(served: Served) -> None:
    with pytest.raises(Exception, match="makes no vectors"):
        served.client.embed(["a text"], timeout_s=PATIENCE_S)


def test_a_prompt_that_fills_the_context_is_refused_here(served: Served) -> None:
    result = served.run("a word " * 600)
    assert result.error is not None
    assert result.error.code == "prompt_too_long"


def test_the_context_s_end_ends_an_output(served: Served) -> None:
    result = served.run(
        "a word " * 100, sampling={"max_tokens": 4000, "ignore_eos": True, "temperature": 0.0}
    )
    assert (result.finish_reason, result.stop_reason) == ("length", "context")
    assert result.usage is not None
    assert result.usage.prompt_tokens + result.usage.completion_tokens == 512


def test_an_error_of_the_server_ends_the_job_alone(served: Served) -> None:
    result = served.run("Once <error 5> upon")
    assert result.error is not None
    assert (result.error.code, result.error.retriable) == ("model_error", True)
    assert served.run().error is None


def test_a_request_that_breaks_off_is_made_again_behind_its_tokens(served: Served) -> None:
    result = served.run(
        "Once <cut 6> upon", sampling={"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
    )
    assert result.error is None
    assert len(result.ids) == 60
    assert result.attempts == 2


def test_a_cancel_is_told_at_once_and_frees_the_server_s_row(served: Served) -> None:
    """Though its server says nothing more. What holds up a busy machine does not do so each time."""
    times_s = []
    for _ in range(4):
        job = served.client.submit(prompt="<hang 4> A tale", sampling={"max_tokens": 400, "ignore_eos": True})
        wait_until(lambda job=job: served.client.job(job).tokens, "it runs")  # type: ignore[misc]
        begun_s = monotonic()
        served.client.cancel(job)
        assert served.client.result(job).finish_reason == "cancelled"
        times_s.append(monotonic() - begun_s)
    assert min(times_s) < 0.5  # of which the worker needs less than 0.2


def test_a_deadline_ends_a_job_and_keeps_its_text(served: Served) -> None:
    result = served.run("<hang 8> A tale", timeout_s=8.0, flush_ms=0)
    assert result.finish_reason == "deadline"
    assert len(result.ids) == (8 if served.kind == "vllm" else 4)


def test_prefix_cache_hits_are_as_the_server_reports_them(served: Served) -> None:
    prompt = "The same long beginning of a tale that is told again and again, and then once more. "
    before = served.num_hits
    for end in ("One", "Two"):
        assert served.run(prompt + end).cached_tokens is None  # it says so too late for the job's start
    wait_until(lambda: served.num_hits > before, "hits are told")


def test_the_start_of_a_job_is_one_event(served: Served) -> None:
    job = served.client.submit(prompt="A tale", sampling={"max_tokens": 5})
    events = list(served.client.stream(job))
    assert [type(one) for one in events].count(Started) == 1
