"""What a body asks for: OpenAI's fields as ours, and every wrong one named."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llama_herd.errors import InvalidJob
from llama_herd.tasks.openai.body_schema import ignored
from llama_herd.tasks.openai.embeddings import EmbeddingBody
from llama_herd.tasks.openai.other_fields import NEUTRAL, Neutral
from llama_herd.tasks.openai.ranks import RankBody
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS, LEAST_TOP_P, Endpoint, RequestBody
from llama_herd.tasks.openai.responses.body import OWN_NEUTRAL, REASONING
from llama_herd.tasks.openai.tokenizing import DetokenizeRequest, TokenizeRequest
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import Settings

MESSAGES = [{"role": "user", "content": "secret"}]


def job(endpoint: Endpoint, **body: Any) -> GenerationJob:
    source = {"messages": MESSAGES} if endpoint == CHAT else {"prompt": "secret"}
    return RequestBody(endpoint, {**source, **body}).job(Settings())


def complaint(endpoint: Endpoint, **body: Any) -> str:
    with pytest.raises(InvalidJob) as caught:
        job(endpoint, **body)
    assert "secret" not in str(caught.value)
    return str(caught.value)


def among(*names: str, mode: str = "auto") -> dict[str, Any]:
    """OpenAI's choice among some of the tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("url", "body", "sampling"),
    [
        (COMPLETIONS, {"max_tokens": 9, "temperature": 0, "stop": "x"}, {"max_tokens": 9, "stop": ("x",)}),
        (COMPLETIONS, {"stop": ["x", "y"], "n": 3, "seed": 5}, {"stop": ("x", "y"), "n": 3, "seed": 5}),
        (COMPLETIONS, {"logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
        (COMPLETIONS, {"logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        (CHAT, {"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        (CHAT, {"max_completion_tokens": 9}, {"max_tokens": 9}),
        (CHAT, {"max_completion_tokens": 9, "max_tokens": 0}, {"max_tokens": 9}),
        (CHAT, {"max_tokens": 0, "max_completion_tokens": 9}, {"max_tokens": 9}),
        (CHAT, {"logit_bias": {"17": -100}}, {"logit_bias": {17: -100}}),
        (COMPLETIONS, {"top_k": -1, "min_p": 0.1}, {"top_k": 0, "min_p": 0.1}),
        (COMPLETIONS, {"top_p": 0}, {"top_p": LEAST_TOP_P}),
        (CHAT, {"top_p": 0.0, "temperature": 0}, {"top_p": LEAST_TOP_P}),
        (COMPLETIONS, {"repetition_penalty": 1.1, "ignore_eos": True}, {"repetition_penalty": 1.1}),
        (CHAT, {"truncate_prompt_tokens": -1, "prompt_logprobs": 2}, {"truncate_prompt_tokens": -1}),
        (COMPLETIONS, {"temperature": None, "stop": None, "logprobs": None, "user": "u"}, {"temperature": 1}),
        (CHAT, {"stream": False, "store": False}, {"n": 1}),
        (CHAT, {"seed": -(2**63), "add_generation_prompt": True}, {"seed": -(2**63)}),
    ],
)
def test_fields_of_openai_and_vllm_mean_what_they_mean_there(
    url: Endpoint, body: dict[str, Any], sampling: dict[str, Any]
) -> None:
    found = job(url, **body).sampling
    assert {name: getattr(found, name) for name in sampling} == sampling


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
def test_retries_stand_beside_the_fields_of_openai(url: Endpoint) -> None:
    found = job(url, retries=3, retry_backoff_s=2)
    assert (found.retries, found.retry_backoff_s) == (3, 2)
    assert complaint(url, retries=21, retry_backof_s=1).count("retries: ") == 1
    assert "retry_backof_s: not supported. Did you mean retry_backoff_s?" in complaint(url, retry_backof_s=1)


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
def test_the_form_of_an_output_is_asked_for_alike_everywhere(url: Endpoint) -> None:
    schema = {"type": "object", "properties": {"b": {"const": None}, "a": {}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    form = job(url, response_format=asked).output_form
    assert form is not None
    assert json.loads(form.text) == schema
    assert job(url, structured_outputs={"regex": "a+"}).output_form == (
        "regex",
        "a+",
        "structured_outputs.regex",
    )
    assert job(url, response_format={"type": "text"}).output_form is None


@pytest.mark.parametrize(
    ("url", "body", "named"),
    [
        (COMPLETIONS, {"stream": True}, "stream: only supported as false"),
        (
            COMPLETIONS,
            {"colour": 1, "suffix": "secret"},
            'colour: not supported; suffix: only supported as ""',
        ),
        (COMPLETIONS, {"best_of": 3}, "best_of: must be the same as n: all outputs"),
        (COMPLETIONS, {"best_of": 2, "n": 3}, "best_of: must be the same as n"),
        (CHAT, {"echo": True}, "echo: only supported as false"),
        (CHAT, {"messages": None}, "messages: is required"),
        (COMPLETIONS, {"prompt": None}, "prompt: is required"),
        (COMPLETIONS, {"logprobs": 50}, "logprobs: input should be less than or equal to 20, got 50"),
        (COMPLETIONS, {"logprobs": 50, "echo": True}, "logprobs: input should be less than or equal to 20"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens: must be at least 1, got 0"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens: must be at least 1, got 0"),
        (COMPLETIONS, {"echo": "secret"}, "echo: input should be a valid boolean"),
        (COMPLETIONS, {"prompt": ["secret", "secret"]}, "prompt: must be exactly one prompt, got 2"),
        (COMPLETIONS, {"max_completion_tokens": 3}, "max_completion_tokens: not supported"),
        (COMPLETIONS, {"max_token": 3}, "max_token: not supported. Did you mean max_tokens?"),
        (CHAT, {"temprature": 3}, "temprature: not supported. Did you mean temperature?"),
        (CHAT, {"max_completion_token": 3}, "Did you mean max_completion_tokens?"),
        (COMPLETIONS, {"tools": [{"type": "function"}]}, "tools: only supported as []"),
        (CHAT, {"tools": "secret"}, "tools: "),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0: function.name must"),
        (CHAT, {"tool_choice": "required"}, "tool_choice: needs tools: there is none to call"),
        (CHAT, {"tool_choice": {"type": "secret"}}, "tool_choice: must be none, auto, required or {"),
        (CHAT, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice: of the type allowed_tools must"),
        (CHAT, {"tool_choice": among("f", mode="none")}, "tool_choice: allowed_tools must have the mode"),
        (CHAT, {"tool_choice": among("secret")}, "tool_choice: allowed_tools.tools.0 must be {"),
        (CHAT, {"tool_choice": among(mode="required")}, "tool_choice: needs tools: there is none to call"),
        (COMPLETIONS, {"tool_choice": "required"}, 'tool_choice: only supported as "none" or "auto"'),
        (CHAT, {"response_format": {"type": "secret"}}, "response_format: must have the type"),
        (CHAT, {"structured_outputs": {"regex": "secret", "choice": []}}, "structured_outputs: must have"),
        (CHAT, {"functions": [{"name": "secret"}]}, "functions: only supported as []"),
        (CHAT, {"reasoning_effort": "secret"}, "reasoning_effort: must be one of none, minimal, low"),
        (COMPLETIONS, {"reasoning_effort": "low"}, "reasoning_effort: not supported"),
        (CHAT, {"guided_json": {}}, "guided_json: not supported: vLLM has given it up, too. Fix: structured"),
        (CHAT, {"add_generation_prompt": False}, "add_generation_prompt: only supported as true"),
        (CHAT, {"repetition_penalty": 5e-324}, "repetition_penalty: input should be greater than or equal"),
        (
            CHAT,
            {"seed": 2**63},
            "seed: input should be less than 9223372036854775808, got 9223372036854775808",
        ),
        (COMPLETIONS, {"chat_template_kwargs": {}}, "chat_template_kwargs: not supported"),
        (CHAT, {"chat_template": "{{ secret }}"}, "chat_template: "),
        (CHAT, {"messages": [{"role": "secret", "content": "secret"}]}, "messages.0.role: input"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "secret"}]}]},
            "messages.0.content: parts of type image_url are not supported",
        ),
        (CHAT, {"messages": "secret"}, "messages: "),
        (CHAT, {"temperature": 7, "top_p": 0}, "temperature: input should be less than or equal to 2"),
        (CHAT, {"temperature": 7, "top_p": -1}, "top_p: input should be greater than 0, got -1"),
        (CHAT, {"top_p": False}, "top_p: input should be a valid number"),
        (COMPLETIONS, {"n": 2, "temperature": 0}, "body: n must be 1 when temperature is 0"),
        (COMPLETIONS, {"a secret": 1}, "?: not supported"),
        (COMPLETIONS, {"a" * 64: 1}, f"{'a' * 64}: not supported"),
        (COMPLETIONS, {"a" * 65: 1}, "?: not supported"),
    ],
)
def test_every_wrong_field_of_a_body_is_named(url: Endpoint, body: dict[str, Any], named: str) -> None:
    assert named in complaint(url, **body)


LOOK_ALIKES = [False, 0, 0.0, "false", True, 1, 1.0, "1", "", [], {}, "none", [True], ["text"]]


@pytest.mark.parametrize("neutral", [*NEUTRAL.values(), *OWN_NEUTRAL.values(), *REASONING.values()])
def test_a_field_that_changes_nothing_takes_the_values_of_its_description(neutral: Neutral) -> None:
    described = Draft202012Validator(ignored(neutral))
    for value in map(json.loads, map(json.dumps, LOOK_ALIKES)):
        assert (not neutral.complaint(value)) == described.is_valid(value), value


@pytest.mark.parametrize("name", ["store", "stream", "return_token_ids"])
def test_a_number_is_no_truth(name: str) -> None:
    assert complaint(CHAT, **{name: 0}) == f"{name}: only supported as false"


def test_a_prompt_may_be_ids_or_a_list_of_one() -> None:
    assert job(COMPLETIONS, prompt=[1, 2, 3]).prompt_ids == (1, 2, 3)
    assert job(COMPLETIONS, prompt=[[1, 2, 3]]).prompt_ids == (1, 2, 3)
    assert job(COMPLETIONS, prompt=["one"]).prompt == "one"


def jobs(*prompts: Any, max_prompts: int = 9, **body: Any) -> list[GenerationJob]:
    return RequestBody(COMPLETIONS, {"prompt": list(prompts), **body}).jobs(Settings(), max_prompts)


def test_each_of_several_prompts_is_a_job() -> None:
    found = jobs("one", [1, 2], "three", max_tokens=5, model="tales")
    assert [one.prompt or one.prompt_ids for one in found] == ["one", (1, 2), "three"]
    assert {(one.sampling.max_tokens, one.model) for one in found} == {(5, "tales")}
    assert found[0] == RequestBody(COMPLETIONS, {"prompt": "one", "max_tokens": 5, "model": "tales"}).job(
        Settings()
    )


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        (["secret", ""], "prompt.1: must not be empty"),
        (["secret", []], "prompt.1: must not be empty"),
        (["secret", 7], "prompt.1: input should be a valid string, got 7"),
        ([7, "secret"], "prompt.0: input should be a valid string, got 7"),
        (["secret", None], "prompt.1: is required"),
        (["secret", {"secret": 1}], "prompt.1: input should be a valid string"),
        ([[1], [["secret"]]], "prompt.1.0: input should be a valid integer"),
        ([[1], ["secret", "secret"]], "prompt.1.0: input should be a valid integer"),
        ([[1], [-1]], "prompt.1.0: input should be greater than or equal to 0, got -1"),
        ([[1], [True]], "prompt.1.0: input should be a valid integer"),
        (["secret"] * 10, "prompt: must be at most 9 prompts, got 10"),
        ([[]] * 10, "prompt: must be at most 9 prompts, got 10"),
        ([], "prompt: must not be empty"),
        ([[]], "prompt: must not be empty"),
        ([[["secret"]]], "prompt.0: input should be a valid integer"),
        (["secret\0", "secret"], "prompt.0: must not contain a NUL character"),
    ],
)
def test_what_is_wrong_with_one_prompt_names_it(prompts: list[Any], named: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        jobs(*prompts)
    assert str(caught.value) == named or str(caught.value).startswith(f"{named};")
    assert "secret" not in str(caught.value)


def test_what_is_wrong_with_all_prompts_is_said_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        jobs("one", "two", "three", temperature=7, colour=1)
    assert [one.field for one in caught.value.fields] == ["colour", "temperature"]


def test_a_prompt_comes_back_with_its_scores_if_the_output_s_are_wanted() -> None:
    found = job(COMPLETIONS, echo=True, logprobs=3, max_tokens=0)
    assert (found.echo, found.sampling.prompt_logprobs, found.sampling.max_tokens) == (True, 3, 0)
    assert job(COMPLETIONS, echo=True).sampling.prompt_logprobs is None
    assert job(COMPLETIONS, echo=True, logprobs=3, prompt_logprobs=5).sampling.prompt_logprobs == 5
    plain = job(COMPLETIONS, echo=False, logprobs=3, best_of=1, suffix="", user="u", service_tier="auto")
    assert plain == job(COMPLETIONS, logprobs=3)


def test_a_message_may_be_in_parts_and_from_a_developer() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    turns = [{"role": "developer", "content": parts}, {"role": "user", "content": "hi", "name": None}]
    found = job(CHAT, messages=turns).messages
    assert found is not None
    kept = [turn.model_dump(exclude_none=True) for turn in found]
    assert kept == [{"role": "developer", "content": tuple(parts)}, {"role": "user", "content": "hi"}]


def test_calls_to_tools_reach_the_template_as_it_expects_them() -> None:
    def call(arguments: object) -> dict[str, Any]:
        return {"id": "call", "type": "function", "function": {"name": "f", "arguments": arguments}}

    texts = ['{"x": [1, null]}', "{", "[1]", "[" * 100_000]
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": list(map(call, texts))},
        {"role": "tool", "content": "1", "tool_call_id": "call"},
    ]
    found = job(CHAT, messages=turns).messages
    assert found is not None
    assert found[1].tool_calls == tuple(map(call, ({"x": [1, None]}, *texts[1:])))
    assert (found[2].role, found[2].tool_call_id) == ("tool", "call")


def test_tools_and_which_of_them_to_call_are_the_job_s() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"default": None}}}]
    named = {"type": "function", "function": {"name": "f"}}
    for choice in ("none", "auto", "required", named):
        found = job(CHAT, tools=tools, tool_choice=choice, parallel_tool_calls=False)
        assert (found.tools, found.tool_choice, found.parallel_tool_calls) == (tuple(tools), choice, False)
    assert job(CHAT, tools=[], tool_choice="auto").tools is None
    assert job(COMPLETIONS, tools=[], tool_choice="auto", parallel_tool_calls=True).tool_choice is None


def test_of_a_choice_among_some_tools_the_job_has_these_alone() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    for mode in ("auto", "required"):
        found = job(CHAT, tools=tools, tool_choice=among("c", "a", mode=mode))
        assert (found.tools, found.tool_choice) == ((tools[0], tools[2]), mode)
    assert job(CHAT, tools=tools, tool_choice=among()).tools is None


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_an_answer_may_be_sent_back_as_it_came(name: str) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": "x", "refusal": None, name: "thought"}]
    found = job(CHAT, messages=turns).messages
    assert found is not None
    assert found[1].reasoning_content == "thought"


def test_what_else_a_template_may_write_of_reaches_it() -> None:
    fields = {"documents": [{"text": "x"}], "chat_template": "rag", "chat_template_kwargs": {"think": False}}
    found = job(CHAT, **fields)
    assert (found.documents, found.chat_template) == (({"text": "x"},), "rag")
    assert found.chat_template_kwargs == {"think": False}


def test_how_much_to_think_is_told_to_the_template() -> None:
    assert job(CHAT, reasoning_effort="low").chat_template_kwargs == {"reasoning_effort": "low"}
    own = {"reasoning_effort": "high", "x": 1}
    assert job(CHAT, reasoning_effort="none", chat_template_kwargs=own).chat_template_kwargs == {
        "reasoning_effort": "high",
        "enable_thinking": False,
        "x": 1,
    }


def test_what_the_body_leaves_out_is_as_the_caller_says() -> None:
    body = RequestBody(COMPLETIONS, {"prompt": "x", "model": "own", "seed": 5})
    found = body.job(Settings(), {"model": "other", "priority": 3}, {"seed": 6, "max_tokens": 7})
    assert (found.model, found.priority) == ("own", 3)
    assert (found.sampling.seed, found.sampling.max_tokens) == (5, 7)


@pytest.mark.parametrize(
    ("kind", "body", "named"),
    [
        (EmbeddingBody, {"input": "a", "dimension": 3}, "dimension: not supported. Did you mean dimensions?"),
        (
            RankBody,
            {"query": "a", "documents": ["b"], "top_k": 3},
            "top_k: not supported. Did you mean top_n?",
        ),
        (TokenizeRequest, {"prompt": "a", "modl": "m"}, "modl: not supported. Did you mean model?"),
        (DetokenizeRequest, {"tokens": [1], "token": [1]}, "token: not supported. Did you mean tokens?"),
        (DetokenizeRequest, {"tokens": [1], "a secret": 1}, "?: not supported"),
    ],
)
def test_an_unknown_field_is_named_with_the_one_that_may_be_meant(
    kind: Callable[[dict[str, Any], Settings], object], body: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        kind(body, Settings())
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)
