"""What messages ask for, well and badly formed."""

import json

import pytest

from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.worker.broker.task_message import NO_JOB, TaskMessage
from llama_herd.worker.settings import WorkerSettings

FOREIGN, OURS = "aa6e4c1c-7ef0-44c1-9a90-8b1cba9a3d44", "job-1:1:1700000000000"
HEADERS = {"id": "job-1", "delivery_info": {"routing_key": "herd:other:dead"}, "argsrepr": "('secret',)"}


def read(body: str, tag: str = FOREIGN, task: object = TASK_NAME) -> TaskMessage:
    headers = HEADERS | {"task": task, "properties": {"delivery_tag": tag}}
    return TaskMessage.read(body, headers, WorkerSettings())


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
    assert (order.error.__traceback__, order.error.__context__) == (None, None), "they would hold the message"
    assert order.envelope is not None


GENERATED = {"job": "job-0", "text": "a tale", "ids": [1], "finish_reason": "stop"}


READ = {**GENERATED, "text": "<think>hm</think>a tale", "reasoning": "hm", "content": "a tale"}


EMBED, RERANK = "herd.embed", "herd.rerank"


@pytest.mark.parametrize("result", ["a tale", ["a tale"], GENERATED, [READ], ("a tale",)])
@pytest.mark.parametrize(
    ("task", "fields"), [(EMBED, {}), (EMBED, {"kind": "embed"}), (TASK_NAME, {"kind": "embed"})]
)
def test_the_texts_of_the_task_before_are_those_to_embed(
    result: object, task: str, fields: dict[str, object]
) -> None:
    order = read(json.dumps([[result], fields, {}]), task=task)
    assert order.error is None
    assert order.envelope is not None
    assert json.loads(order.envelope.text)["headers"]["task"] == task
    assert isinstance(order.job, EmbeddingJob)
    assert order.job.texts == ("a tale",)


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ([], {"query": "who", "documents": ["a tale", "b"]}),
        (["who", ["a tale", "b"]], {}),
        ([[GENERATED, "b"], "who"], {"kind": "rank"}),
        ([["a tale", READ]], {"query": "who"}),
        ([{**GENERATED, "text": "who"}], {"documents": ["a tale", "b"]}),
    ],
)
def test_of_a_ranking_a_list_is_the_documents_and_a_text_the_query(
    args: list[object], fields: dict[str, object]
) -> None:
    order = read(json.dumps([args, fields, {}]), task=RERANK)
    assert isinstance(order.job, RankingJob)
    assert (order.job.query, order.job.documents[0], len(order.job.documents)) == ("who", "a tale", 2)


@pytest.mark.parametrize("task", [EMBED, RERANK])
@pytest.mark.parametrize(
    "args",
    [[7], [None], [True], [{"text": "x"}], [[7]], [[None]], [["a", 1.5]], [[["a"]]], ["a", "b"], [[1], [2]]],
)
def test_arguments_that_are_no_texts_are_told_which_are(task: str, args: list[object]) -> None:
    order = read(json.dumps([args, {}, {}]), task=task)
    assert order.job is NO_JOB
    assert "must be given as keyword arguments" in str(order.error)
    assert ("a list is documents" if task == RERANK else "argument is texts") in str(order.error)


@pytest.mark.parametrize(
    ("task", "args", "fields", "words"),
    [
        (EMBED, [["a"]], {"texts": ["b"]}, "texts: is given beside"),
        (
            EMBED,
            [["a"]],
            {"text_ids": [[1]]},
            "text_ids: is given beside a positional argument, which is texts",
        ),
        (RERANK, [["a"]], {"query": "q", "documents": ["b"]}, "documents: is given beside"),
        (RERANK, ["a"], {"query": "q", "documents": ["b"]}, "query: is given beside"),
        (RERANK, [["a"]], {}, "query: field required"),
        (RERANK, [], {}, "query: field required; documents: field required"),
        (EMBED, [], {}, "texts: exactly one of texts and text_ids is required"),
        (EMBED, [[]], {}, "texts: must not be empty"),
        (EMBED, ["a"], {"kind": "rank"}, "kind: must be embed, or absent, for the task herd.embed"),
        (RERANK, [], {"kind": None}, "kind: must be rank, or absent, for the task herd.rerank"),
        (EMBED, ["a"], {"prompt": "b"}, "prompt: unknown field"),
        (EMBED, ["a"], {"temperature": 1}, "temperature: unknown field"),
        (RERANK, ["a", ["b"]], {"top_n": 1}, "top_n: unknown field"),
    ],
)
def test_fields_that_do_not_fit_the_task_are_named(
    task: str, args: list[object], fields: dict[str, object], words: str
) -> None:
    order = read(json.dumps([args, fields, {}]), task=task)
    assert order.job is NO_JOB
    assert words in str(order.error)
    assert "sampling" not in str(order.error)


@pytest.mark.parametrize("task", [None, 7, [], {}, "herd.other"])
def test_a_task_that_is_none_of_ours_is_read_as_the_first(task: object) -> None:
    """Where others have written."""
    order = read(json.dumps([["a tale"], {}, {}]), task=task)
    assert isinstance(order.job, GenerationJob)


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
