"""A herd without a model: what a shop's test sees of it is what any herd does."""

import asyncio
import json
import os
import threading
from pathlib import Path
from time import time
from typing import Any

import openai
import psutil
import pytest
from redis import Redis

from llama_herd import AsyncClient, Client, ErrorCode, GenerationError, JobNotFound, Token, UnservedModel
from llama_herd.errors import BadInput
from llama_herd.local.worker_process import WorkerDied
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.testing import Answer, FakeHerd, fake_herd
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.cli.gateway_process import GatewayProcess

pytestmark = [pytest.mark.redis, pytest.mark.worker]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
#: So long that nothing but the test ends it.
SLOW = Answer.of("one" + " two" * 300, tokens_per_s=1)


def ask(herd: FakeHerd, **fields: Any) -> Any:
    return herd.client.result(herd.client.submit(**{"prompt": "x", **fields}))


def first_token(herd: FakeHerd, job_id: str) -> Token:
    return next(event for event in herd.client.stream(job_id) if isinstance(event, Token))


def test_usage_and_ends_are_those_of_the_text(herd: FakeHerd) -> None:
    herd.answer("one two six ten")
    whole, cut = ask(herd, prompt="a b c"), ask(herd, sampling={"max_tokens": 2})
    assert (whole.text, whole.finish_reason) == ("one two six ten", "stop")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 5)  # and the end itself
    assert (cut.text, cut.finish_reason, cut.usage.completion_tokens) == ("one two", "length", 2)
    stopped = ask(herd, sampling={"stop": [" six"]})
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("one two", "stop", " six")
    twice = ask(herd, sampling={"n": 2, "logprobs": True, "top_logprobs": 1})
    assert [choice.text for choice in twice.choices] == ["one two six ten"] * 2
    assert twice.logprobs == (0.0,) * 5


@pytest.mark.parametrize("after_tokens", [0, 2])
def test_each_code_can_be_an_answer(herd: FakeHerd, after_tokens: int) -> None:
    herd.answer(*(Answer.failing(code, text="one two six", after_tokens=after_tokens) for code in ErrorCode))
    results = [ask(herd) for _ in ErrorCode]
    assert [result.error.code for result in results] == list(ErrorCode)
    assert [result.error.retriable for result in results] == [code.retriable for code in ErrorCode]
    assert {result.text for result in results} == {"one two" if after_tokens else ""}
    assert {result.attempts for result in results} == {1 if after_tokens else 0}


def test_a_failure_comes_though_its_text_is_shorter_or_is_not_written(herd: FakeHerd) -> None:
    herd.answer(Answer.failing("out_of_memory", text="one", after_tokens=9), to="short")
    herd.answer(Answer.failing("out_of_memory", after_tokens=3), to="unwritten")
    short, unwritten = ask(herd, prompt="short"), ask(herd, prompt="unwritten")
    assert [one.error and one.error.code for one in (short, unwritten)] == ["out_of_memory"] * 2
    assert (short.text, unwritten.text) == ("one", "This answer")


def test_a_death_costs_time_and_no_text(herd: FakeHerd) -> None:
    herd.answer(Answer.of("one two six ten", dies_after=2))
    job_id = herd.client.submit(prompt="x", model="qwen")
    events = list(herd.client.stream(job_id))
    result = herd.client.result(job_id)
    assert (result.text, result.attempts) == ("one two six ten", 2)
    tokens = [event for event in events if isinstance(event, Token)]
    texts = {epoch: "".join(one.text for one in tokens if one.epoch == epoch) for epoch in (1, 2)}
    assert texts == {1: "one two", 2: " six ten"}  # in one event or more
    assert len(herd.jobs) == 1


def test_a_job_that_kills_each_worker_is_poisoned(herd: FakeHerd) -> None:
    herd.answer(Answer.of("x", dies_after=0))
    result = ask(herd)
    assert (result.error.code, result.attempts) == ("poisoned", 3)


def test_answers_have_their_own_pace(herd: FakeHerd) -> None:
    herd.answer(SLOW, to="slow")
    herd.answer(Answer.of("one two three", tokens_per_s=20), to="steady")
    herd.answer("fast", to="fast")
    slow = herd.client.submit(prompt="slow")
    first_token(herd, slow)
    assert ask(herd, prompt="fast").text == "fast"
    assert ask(herd, prompt="steady").timings.total_s >= 0.15  # four gaps, the end too
    assert herd.client.job(slow).finish_reason is None  # nobody has waited for it
    herd.client.cancel(slow)
    cut = herd.client.result(slow)
    assert (cut.finish_reason, cut.text.startswith("one")) == ("cancelled", True)


def test_deadlines_and_priorities_are_kept(herd: FakeHerd) -> None:
    herd.answer(SLOW, to="slow")
    herd.answer("fast", to="fast")
    late = ask(herd, prompt="slow", deadline_ms=int(1000 * time()) + 300)
    assert late.finish_reason == "deadline"
    slow = [herd.client.submit(prompt="slow", priority=-5) for _ in range(2)]  # all slots
    for job_id in slow:
        first_token(herd, job_id)
    assert ask(herd, prompt="fast", priority=5).text == "fast"
    assert {herd.client.job(job_id).finish_reason for job_id in slow} == {None}


def test_a_job_gets_what_it_asks_for(herd: FakeHerd) -> None:
    herd.answer()
    chat: list[dict[str, Any]] = [{"role": "user", "content": "Will it rain?"}]
    called = ask(herd, prompt=None, messages=chat, tools=[WEATHER])
    ((call,),) = (called.tool_calls,)
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "a"})
    done = [
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    told = ask(herd, prompt=None, messages=chat + done, tools=[WEATHER])
    assert (told.tool_calls, told.content) == (None, "This answer is scripted.")
    assert ask(herd, structured_outputs={"choice": ["red", "blue"]}).text == "red"
    assert ask(herd, structured_outputs={"regex": r"\d{3}"}).text == "000"
    assert json.loads(ask(herd, response_format={"type": "json_object"}).text) == {}
    never = {"type": "function", "function": {"name": "never", "parameters": {"not": {}}}}
    uncalled = ask(herd, prompt=None, messages=chat, tools=[never])
    assert "tools: schema: not: no answer is made of that" in uncalled.error.message
    refused = ask(herd, structured_outputs={"grammar": 'start: "a"'})
    assert refused.error.message == (
        "structured_outputs.grammar: no text is made of a grammar. Fix: write the answer"
    )


def test_reasoning_and_calls_are_parts_of_an_output(herd: FakeHerd) -> None:
    herd.answer(Answer.of("Yes.", reasoning="It may."), Answer.calling("weather", city="Paris"))
    chat = [{"role": "user", "content": "Will it rain?"}]
    said = ask(herd, prompt=None, messages=chat)
    assert (said.reasoning, said.content) == ("It may.", "Yes.")
    called = ask(herd, prompt=None, messages=chat, tools=[WEATHER])
    assert [json.loads(one.arguments) for one in called.tool_calls] == [{"city": "Paris"}]


def test_an_unanswered_job_fails_and_its_author_sees_it(herd: FakeHerd) -> None:
    herd.answer("x", to="other")
    job_id = herd.client.submit(prompt="a secret prompt")
    with pytest.raises(GenerationError, match=f"no answer for job {job_id}"):
        herd.client.result(job_id).raise_for_error()
    assert [one.text for one in herd.unanswered] == ["a secret prompt"]
    assert "secret" not in herd.log


def test_functions_run_where_the_test_does(herd: FakeHerd) -> None:
    held = threading.Event()

    def reply(asked: Any) -> str:
        held.wait(PATIENCE_S)
        return f"{asked.model}: {asked.text} {os.getpid()}"

    herd.answer(reply)
    job_id = herd.client.submit(prompt="x", model="qwen")
    wait_until(lambda: herd.jobs, "it is asked")
    assert herd.client.job(job_id).finish_reason is None
    held.set()
    assert herd.client.result(job_id).text == f"qwen: x {os.getpid()}"


def test_a_function_that_does_not_return_holds_up_no_end(capfd: pytest.CaptureFixture[str]) -> None:
    """As one does that waits for what a test that has failed would have said."""
    held = threading.Event()
    herd = FakeHerd(["one"]).start()
    herd.answer(lambda asked: str(held.wait()))
    herd.client.submit(prompt="x", model="one")
    wait_until(lambda: herd.jobs, "it is asked")
    ending = threading.Thread(target=herd.close)
    ending.start()
    ending.join(PATIENCE_S)
    has_ended, asked = not ending.is_alive(), [one for one in threading.enumerate() if "_request" in one.name]
    held.set()
    assert has_ended
    for one in asked:
        one.join(PATIENCE_S)
    assert "Traceback" not in capfd.readouterr().err


def test_batches_and_asyncio(herd: FakeHerd) -> None:
    herd.answer(lambda asked: asked.text.upper())
    prompts = [f"row {number}" for number in range(20)]
    rows = list(herd.client.batch({"prompt": prompt} for prompt in prompts))
    assert [row.result.text for row in rows if row.result] == [prompt.upper() for prompt in prompts]

    async def read() -> str:
        async with AsyncClient() as client:
            job_id = await client.submit(prompt="abc", model="qwen")
            return "".join([event.text async for event in client.stream(job_id) if isinstance(event, Token)])

    assert asyncio.run(read()) == "ABC"


def test_nothing_of_one_test_is_left_for_the_next(herd: FakeHerd) -> None:
    herd.answer(SLOW)
    jobs = [
        herd.client.submit(prompt="x", idempotency_key=f"order-{number}", model="qwen") for number in range(5)
    ]
    waits = herd.client.submit(prompt="x", not_before=int(1e13))
    first_token(herd, jobs[0])
    herd.reset()
    assert (list(herd.jobs), herd.client.count_jobs()) == ([], 0)
    for job_id in (*jobs, waits):
        with pytest.raises(JobNotFound):
            herd.client.job(job_id)
    herd.answer("other")
    job_id = herd.client.submit(prompt="y", idempotency_key="order-0", model="qwen")
    assert (job_id, herd.client.result(job_id).text) == (jobs[0], "other")


def test_no_result_comes_after_a_reset(herd: FakeHerd) -> None:
    """Of jobs, too, that the script is not asked for, and of those that end before a worker has them."""
    with Redis.from_url(herd.url) as redis:
        for _ in range(20):
            for _ in range(10):
                herd.client.submit(EmbeddingJob(texts=("one",)))
            herd.reset()
            herd.answer("x")
            job_id = herd.client.submit(prompt="x")
            herd.client.result(job_id)
            assert set(redis.keys("celery-task-meta-*")) <= {f"celery-task-meta-{job_id}".encode()}


def test_what_waits_for_a_retry_holds_up_no_reset(herd: FakeHerd, monkeypatch: pytest.MonkeyPatch) -> None:
    herd.answer(Answer.failing("model_error"))
    job_id = herd.client.submit(prompt="x", retries=3)
    with Redis.from_url(herd.url) as redis:
        wait_until(
            lambda: herd.client.job(job_id).state == "delayed" and not redis.exists("herd:default:unacked"),
            "it waits, and no worker has its message",
        )
        waits: list[float] = []

        def until_settled(wait_s: float) -> None:
            """A cancel brings a worker the message, so that Celery hears of it: so long it may wait."""
            wait_until(lambda: not redis.exists("herd:default:unacked"), "no worker has its message")
            waits.append(wait_s)

        monkeypatch.setattr(fake_herd, "sleep", until_settled)
        herd.reset()
    assert len(waits) <= 1


def test_what_waits_for_a_model_that_is_not_here_holds_up_no_reset(
    herd: FakeHerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UnservedModel):
        job_id = herd.client.submit(prompt="x", model="nobody")
    monkeypatch.setattr(fake_herd, "sleep", lambda _: pytest.fail("nobody will take it"))
    herd.reset()
    with pytest.raises(JobNotFound):
        herd.client.job(job_id)


def test_a_job_that_wants_its_ids_alone_takes_no_answer(herd: FakeHerd) -> None:
    """As that of `/tokenize`, of which a model hears nothing."""
    herd.answer("first", "then", to="one")
    told = [ask(herd, prompt=text, echo=True, sampling={"max_tokens": 0}) for text in ("one two", "another")]
    assert [(one.prompt_text, one.text) for one in told] == [("one two", ""), ("another", "")]
    assert [job.text for job in herd.jobs] == []
    assert ask(herd, prompt="one").text == "first"


def test_a_gateway_serves_it(herd: FakeHerd, tmp_path: Path) -> None:
    herd.answer("one two six ten")
    with GatewayProcess(herd.url, tmp_path / "log") as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none")
        assert {model.id for model in client.models.list()} == {"tales", "qwen"}
        chat: Any = [{"role": "user", "content": "x"}]
        parts = client.chat.completions.create(model="qwen", messages=chat, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "one two six ten"
        whole = client.completions.create(model="tales", prompt="a b")
        assert whole.usage is not None
        assert (whole.choices[0].text, whole.usage.prompt_tokens) == ("one two six ten", 2)


def test_no_process_and_no_thread_is_left(tmp_path: Path) -> None:
    own, threads = psutil.Process(), set(threading.enumerate())
    before = {one.pid for one in own.children(recursive=True)}
    with FakeHerd(["one"]) as herd:
        herd.answer("x")
        job_id = herd.client.submit(prompt="x", model="one")
        assert herd.client.result(job_id).text == "x"
        assert len(own.children(recursive=True)) >= len(before) + 3  # a Redis, and the workers' two
    assert {one.pid for one in own.children(recursive=True)} == before
    assert set(threading.enumerate()) == threads


def test_a_redis_of_others_is_not_emptied(redis: Redis, redis_url: str) -> None:
    redis.set("order", 7)
    with (
        pytest.raises(BadInput, match="has 1 keys, and tests would delete them"),
        FakeHerd(redis_url=redis_url),
    ):
        pass
    assert redis.get("order") == b"7"
    redis.flushdb()
    with FakeHerd(redis_url=redis_url) as herd, Client(redis_url) as client:
        herd.answer("x")
        assert client.result(client.submit(prompt="x")).text == "x"
    assert redis.dbsize() == 0


def test_a_herd_may_be_another_tenant_s() -> None:
    with FakeHerd(tenant="acme") as herd, Client(herd.url, tenant="acme") as client:
        herd.answer("x")
        assert client.result(client.submit(prompt="x")).text == "x"
        assert [job.tenant for job in herd.jobs] == ["acme"]
        herd.reset()
        assert herd.client.count_jobs() == 0


def test_settings_and_names_that_cannot_be_are_told() -> None:
    with pytest.raises(BadInput, match="tenants: the workers of a fake herd have one"):
        FakeHerd(tenants="acme,globex")
    with pytest.raises(BadInput, match="models: must be names such as llama-3"):
        FakeHerd(["a b"])
    with (
        pytest.raises(BadInput, match="slots=0: input should be greater than or equal to 1"),
        FakeHerd(slots=0),
    ):
        pass


def test_only_models_that_are_there_are_answered(herd: FakeHerd) -> None:
    with pytest.raises(BadInput, match="model='quen': this herd has tales, qwen"):
        herd.answer("x", model="quen")


def test_a_worker_that_is_killed_is_started_again(herd: FakeHerd) -> None:
    (parent,) = (
        one for one in psutil.Process().children() if "llama_herd.testing.fake_worker" in one.cmdline()
    )
    for worker in parent.children():
        worker.kill()
    herd.answer("x")
    assert [ask(herd, model=model).text for model in ("tales", "qwen")] == ["x", "x"]


def test_workers_that_are_gone_are_told_with_their_log() -> None:
    with FakeHerd(["one"]) as herd:
        workers = [one for one in psutil.Process().children() if one.cmdline()[-1] == "one"]
        workers[0].terminate()
        wait_until(lambda: workers[0].status() == psutil.STATUS_ZOMBIE, "the workers' end")
        with pytest.raises(WorkerDied, match="fake herd ended with exit code 0"):
            herd.reset()
