"""What messages ask for, well and badly formed."""

import json

import pytest

from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.worker.broker.task_message import NO_JOB, TaskMessage
from llama_herd.worker.settings import WorkerSettings

FOREIGN, OURS = "aa6e4c1c-7ef0-44c1-9a90-8b1cba9a3d44", "job-1:1:1700000000000"
HEADERS = {"id": "job-1", "delivery_info": {"routing_key": "herd:other:dead"}, "argsrepr": "('secret',)"}


def read(body: str, tag: str = FOREIGN) -> TaskMessage:
    return TaskMessage.read(body, HEADERS | {"properties": {"delivery_tag": tag}}, WorkerSettings())


def test_a_message_of_our_own_brings_nothing() -> None:
    assert read(json.dumps([[], {}, {"callbacks": None}]), OURS) == TaskMessage(embed={"callbacks": None})


def test_a_bare_message_brings_its_job_and_keeps_its_links() -> None:
    embed = {"callbacks": [{"task": "next"}], "errbacks": None, "chain": None, "chord": None}
    order = read(json.dumps([[], {"prompt": "hi", "sampling": {"seed": 3}}, embed]))
    assert order.error is None
    assert isinstance(order.job, GenerationJob)
    assert order.job.sampling.seed == 3
    assert order.envelope is not None
    assert "secret" not in order.envelope.text


def test_a_message_goes_back_to_the_queue_it_came_by_whatever_it_says() -> None:
    order = read(json.dumps([[], {"prompt": "hi"}, None]))
    assert order.envelope is not None
    assert order.envelope.queue == "herd.tales"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        "{}",
        "7",
        "[[], {}]",
        '[[], {"prompt": 1}, {}, {}]',
        '["x", {}, {}]',
        "[" * 100_000,
        json.dumps([["two", "prompts"], {}, {}]),
        json.dumps([[], {}, {}]),
        json.dumps([[], {"prompt": ""}, {}]),
        json.dumps([[], {"prompt": "hi", "frobnicate": True}, None]),
    ],
)
def test_any_other_message_is_a_job_that_never_runs(body: str) -> None:
    order = read(body)
    assert order.job is NO_JOB
    assert order.error is not None
    assert order.envelope is not None


GENERATED = {"job": "job-0", "text": "a tale", "ids": [1], "finish_reason": "stop"}


READ = {**GENERATED, "text": "<think>hm</think>a tale", "reasoning": "hm", "content": "a tale"}


@pytest.mark.parametrize("result", ["a tale", ["a tale"], ("a tale",)])
def test_the_texts_of_the_task_before_are_those_to_embed(result: object) -> None:
    order = read(json.dumps([[result], {"kind": "embed"}, {}]))
    assert order.error is None
    assert isinstance(order.job, EmbeddingJob)
    assert order.job.texts == ("a tale",)


@pytest.mark.parametrize("result", ["a tale", GENERATED, {**GENERATED, "content": None}, READ])
def test_the_text_of_the_task_before_is_the_prompt(result: object) -> None:
    order = read(json.dumps([[result], {"sampling": {"max_tokens": 3}}, {}]))
    assert order.error is None
    assert isinstance(order.job, GenerationJob)
    assert (order.job.prompt, order.job.sampling.max_tokens) == ("a tale", 3)


@pytest.mark.parametrize(
    "args", [[7], [None], [["a tale"]], [{"text": "a tale"}], [{"finish_reason": "stop"}], ["a", "tale"]]
)
def test_a_result_that_is_no_text_names_the_way_to_leave_it_out(args: list[object]) -> None:
    order = read(json.dumps([args, {"sampling": {"max_tokens": 3}}, {}]))
    assert order.job is NO_JOB
    assert ".si()" in str(order.error)
    assert "tale" not in str(order.error)


@pytest.mark.parametrize(
    "given", [{"prompt": "mine"}, {"prompt_ids": [1]}, {"messages": [{"role": "user", "content": "hi"}]}]
)
def test_a_prompt_beside_the_result_of_the_task_before_is_refused(given: dict[str, object]) -> None:
    order = read(json.dumps([["a tale"], given, {}]))
    assert order.job is NO_JOB
    assert order.error is not None
    assert order.error.fields[0].field in given
    assert ".si()" in str(order.error)


def test_what_stands_in_the_record_for_an_unreadable_job_is_refused_again() -> None:
    order = read(json.dumps([[], json.loads(NO_JOB.to_json()), {}]))
    assert order.error is not None
    assert "prompt" in str(order.error)


@pytest.mark.long
def test_links_that_can_be_read_but_are_too_deep_to_be_written_again_are_refused() -> None:
    """How deep that is, the caller's depth decides: some of these are."""
    for depth in range(500, 1000):
        links = {"callbacks": 0}
        body = json.dumps([[], {"prompt": "x"}, links]).replace("0", "[" * depth + "]" * depth)
        assert read(body).envelope is not None
