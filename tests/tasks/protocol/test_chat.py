"""What a job may say to a chat template: JSON within bounds, and nothing that it means otherwise."""

import json
from math import inf
from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.tasks.protocol.chat import MAX_DOCUMENTS, MAX_OPTIONS, MAX_PARTS, MAX_TOOLS
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.json_values import MAX_DEPTH, MAX_VALUES
from llama_herd.tasks.settings import Settings

TURN = {"role": "user", "content": "hi"}


def nested(depth: int) -> Any:
    value: Any = "secret"
    for _ in range(depth):
        value = [value]
    return value


def parse(**fields: Any) -> GenerationJob:
    return GenerationJob.parse({"messages": [TURN], **fields}, Settings())


def tool(type: str = "function", **function: Any) -> dict[str, Any]:
    return {"type": type, "function": {"name": "f", **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


WHOLE: dict[str, Any] = {
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "é"}]},
        {"role": "user", "content": ""},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": {"b": None, "a": 1}}}],
        },
        {"role": "tool", "content": "1", "name": "f", "tool_call_id": "c"},
        {"role": "assistant", "content": "x", "reasoning_content": "y"},
    ],
    "tools": [{"z": None, "a": [True, {"y": [], "x": {}}, 2**63]}, tool(parameters=None, strict=True)],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "documents": [],
    "chat_template": "tool_use",
    "chat_template_kwargs": {"enable_thinking": False, "a": None},
}


def test_a_chat_is_kept_as_it_was_given_with_its_nulls_and_in_its_order() -> None:
    job = parse(**WHOLE)
    kept = json.loads(job.to_json())
    assert {name: kept[name] for name in WHOLE} == WHOLE
    assert list(kept["tools"][0]) == ["z", "a"]
    assert GenerationJob.parse(job.to_json(), Settings()) == job
    assert GenerationJob.parse(job, Settings()).to_json() == job.to_json()


def test_all_that_a_template_may_write_counts_as_prompt() -> None:
    assert parse().num_prompt_bytes == 2
    assert parse(tools=[{"é": 1}]).num_prompt_bytes == 2 + len('[{"é":1}]'.encode())
    calls = [
        {"role": "assistant", "content": "x", "tool_calls": [{}], "reasoning_content": "yy", "name": "z"}
    ]
    assert parse(messages=calls).num_prompt_bytes == 1 + 4 + 2 + 1


def test_a_prompt_is_limited_with_all_that_counts_as_prompt() -> None:
    parts: dict[str, Any] = {
        "messages": [{"role": "user", "content": "x" * 15}],
        "tools": [{"a": "x" * 15}],
        "documents": [{"a": "x" * 15}],
        "chat_template_kwargs": {"a": "x" * 15},
        "structured_outputs": {"regex": "x" * 15},
    }
    num_bytes = parse(**parts).num_prompt_bytes
    assert GenerationJob.parse(parts, Settings(max_prompt_bytes=num_bytes)) == parse(**parts)
    with pytest.raises(InvalidJob, match=f"^prompt: must be at most {num_bytes - 1} .*, got {num_bytes}$"):
        GenerationJob.parse(parts, Settings(max_prompt_bytes=num_bytes - 1))


@pytest.mark.parametrize("name", ["tools", "documents", "messages", "chat_template_kwargs"])
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (nested(MAX_DEPTH + 1), f"at most {MAX_DEPTH} levels"),
        (nested(100_000), f"at most {MAX_DEPTH} levels"),
        ([0] * MAX_VALUES, f"at most {MAX_VALUES} values"),
        (inf, "finite numbers"),
        (2**70, "64 bits"),
        ("secret\0", "NUL"),
        ("secret\ud800", "well-formed"),
        ({1: "secret"}, "strings as names"),
        ({"secret\0": 1}, "NUL"),
        (object(), "must be JSON"),
        ("secret" * 200_000, "at most 262144 bytes"),
    ],
)
def test_json_has_bounds_and_is_not_repeated(name: str, value: Any, complaint: str) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "assistant", "content": "x", "tool_calls": [{"x": value}]}],
        "chat_template_kwargs": {"x": value},
    }
    with pytest.raises(InvalidJob, match=f"^{name}: .*{complaint}") as caught:
        parse(**{name: fields.get(name, [{"x": value}])})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tools": [{}] * (MAX_TOOLS + 1)}, f"tools: must have at most {MAX_TOOLS} items, got 129"),
        ({"documents": [{}] * (MAX_DOCUMENTS + 1)}, f"documents: must have at most {MAX_DOCUMENTS} items"),
        (
            {"chat_template_kwargs": {f"a{n}": 1 for n in range(MAX_OPTIONS + 1)}},
            "chat_template_kwargs: must",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs: must not hold messages"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs: must not hold bos_token"),
        ({"chat_template_kwargs": {"__class__": "secret"}}, "chat_template_kwargs: must have names"),
        ({"chat_template_kwargs": {"secret{}": 1}}, "chat_template_kwargs: must have names"),
        ({"chat_template": "{{ secret }}"}, "chat_template: "),
        ({"tools": {"secret": 1}}, "tools: "),
        ({"tools": ["secret"]}, "tools.0: "),
        ({"tools": [tool(type="secret")]}, "tools.0: type must be function"),
        ({"tools": [{"type": "function"}]}, "tools.0: function must be an object with a name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a secret"}}]},
            "tools.0: function.name must be",
        ),
        (
            {"tools": [tool(), tool(parameters="secret")]},
            "tools.1: function.parameters must be a JSON schema",
        ),
        ({"tools": [tool(strict="secret")]}, "tools.0: function.strict must be true or false"),
        ({"tool_choice": "secret"}, 'tool_choice: must be none, auto, required or {"type": "function", '),
        ({"tool_choice": {"type": "function", "function": {"name": 1}}}, "tool_choice: function must have a"),
        ({"tool_choice": "required"}, "tool_choice: needs tools: there is none to call"),
        ({"tools": [], "tool_choice": named("f")}, "tool_choice: needs tools"),
        ({"tools": [tool(), {"x": 1}], "tool_choice": "required"}, "tool_choice: needs tools of the form {"),
        ({"tools": [tool()], "tool_choice": named("g")}, "tool_choice: must name one of the tools"),
        ({"parallel_tool_calls": "secret"}, "parallel_tool_calls: "),
        ({"prompt": "x", "messages": None, "tool_choice": "auto"}, "prompt: tool_choice needs messages"),
        ({"messages": [{"role": "assistant"}]}, "messages.0: must have content"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content: must be a text or a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_PARTS + 1)}]},
            f"messages.0.content: must have at most {MAX_PARTS} items",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "secret", "text": "x"}]}]},
            "messages.0.content: parts must be of type text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages.0.content: parts of type input_audio are not supported",
        ),
        ({"prompt": "x", "messages": None, "tools": []}, "prompt: tools needs messages"),
        ({"prompt": "x", "messages": None, "chat_template": "a"}, "prompt: chat_template needs messages"),
    ],
)
def test_what_no_template_or_model_can_take_is_refused_by_name(
    fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse(**fields)
    assert str(caught.value).startswith(complaint)
    assert "secret" not in str(caught.value)
