"""The schema of an OpenAI request as it is taken here, made of the classes that check it."""

from typing import Any

from llama_herd.tasks.openai.allowed_tools import ALLOWED, MODES
from llama_herd.tasks.openai.other_fields import NEUTRAL, Neutral
from llama_herd.tasks.openai.request_body import (
    CHAT,
    CHAT_NAMES,
    CHAT_SAME,
    COMPLETION_SAME,
    EFFORTS,
    JOB_SAME,
    SAME,
    Endpoint,
)
from llama_herd.tasks.openai.tokenizing import NEUTRAL as TOKENIZE_NEUTRAL
from llama_herd.tasks.openai.turns import ANSWER_FIELDS
from llama_herd.tasks.protocol.chat import MAX_MESSAGES, MAX_PARTS
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.priority import MAX_PRIORITY, MIN_PRIORITY
from llama_herd.tasks.protocol.structured_outputs import FORM_FIELDS
from llama_herd.tasks.protocol.tools import CHOICES

#: How one of our definitions is referred to.
REF = "#/components/schemas/{model}"

_STREAM = {
    "stream": {"type": "boolean", "default": False, "description": "Send the text as it comes."},
    "priority": {
        "type": "integer",
        "minimum": MIN_PRIORITY,
        "maximum": MAX_PRIORITY,
        "description": "Higher goes first, unlike in vLLM, up to what the key allows.",
    },
    "stream_options": {
        "type": "object",
        "description": "Only with stream.",
        "properties": {
            "include_usage": {"type": "boolean", "description": "The last chunk counts the tokens."},
            "include_obfuscation": {"const": False},
            "continuous_usage_stats": {
                "type": "boolean",
                "description": "vLLM's, with include_usage: each chunk counts the tokens so far.",
            },
        },
        "additionalProperties": False,
    },
}
_NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_FUNCTION = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {"type": {"const": "function"}, "function": _NAMED},
}
_ALLOWED = {
    "type": "object",
    "required": ["mode", "tools"],
    "properties": {"mode": {"enum": list(MODES)}, "tools": {"type": "array", "items": _FUNCTION}},
    "additionalProperties": False,
}
_CHAT = {
    "tool_choice": {
        "anyOf": [
            {"enum": list(CHOICES)},
            _FUNCTION | {"description": "The output is a call to this tool.", "additionalProperties": False},
            {"type": "null"},
            {
                "type": "object",
                "description": "A choice among these tools, as if the others were not sent.",
                "required": ["type", ALLOWED],
                "properties": {"type": {"const": ALLOWED}, ALLOWED: _ALLOWED},
                "additionalProperties": False,
            },
        ],
        "description": "`auto`, or absent: the model may call tools. `required`: its output is a call. "
        "`none`: the template gets no tools.",
    },
    "reasoning_effort": {
        "enum": list(EFFORTS),
        "description": "How much to think, for templates that know `reasoning_effort`; `none` also sets "
        "their `enable_thinking` to false.",
    },
}
_COMPLETION = {
    "echo": {
        "type": "boolean",
        "default": False,
        "description": "The text begins with the prompt, and the scores with those of its tokens.",
    },
    "best_of": {"type": "integer", "description": "Must be the same as n."},
    "tools": {"const": [], "description": "Only chats have some."},
}


def body_schema(endpoint: Endpoint) -> dict[str, Any]:
    """All fields that a body may have. Others are refused by name."""
    schema = GenerationJob.model_json_schema(ref_template=REF)
    job, sampling = schema["properties"], schema["$defs"]["SamplingParams"]["properties"]
    fields: dict[str, Any] = {"model": job["model"], **{name: sampling[name] for name in sorted(SAME)}}
    fields |= {name: job[name] for name in sorted(FORM_FIELDS | JOB_SAME)}
    fields["stop"] = {"anyOf": [{"type": "string"}, sampling["stop"]], "description": "Ends the output."}
    fields["top_k"] = {**sampling["top_k"], "minimum": -1, "description": "Keep the k likeliest. 0, -1: all."}
    fields["top_p"] = _with_zero(sampling["top_p"])
    fields |= {name: ignored(one) for name, one in NEUTRAL.items()} | _STREAM
    if endpoint == CHAT:
        fields["messages"] = {**job["messages"], "anyOf": [_turns_schema(schema["$defs"]["ChatMessage"])]}
        fields |= {name: sampling[ours] for name, ours in CHAT_NAMES.items()}
        fields |= {name: job[name] for name in ("tools", *sorted(CHAT_SAME))}
        fields |= {name: sampling[name] for name in ("logprobs", "top_logprobs")}
        fields |= _CHAT
    else:
        prompt = [job["prompt"], job["prompt_ids"]]
        fields["prompt"] = {
            "anyOf": [*prompt, {"type": "array", "minItems": 1, "items": {"anyOf": prompt}}],
            "description": "The text to continue, or its token ids; or a list of these, each a job.",
        }
        fields |= {name: job[name] for name in sorted(COMPLETION_SAME)}
        fields["logprobs"] = {
            **sampling["top_logprobs"],
            "description": "Report each token's log-probability, and as many of the likeliest tokens.",
        }
        fields |= _COMPLETION
    source = "messages" if endpoint == CHAT else "prompt"
    # In the order in which people write them.
    first = ("model", source, "max_tokens", "stream")
    ordered = {name: fields[name] for name in (*first, *sorted(fields.keys() - set(first)))}
    return {"type": "object", "required": [source], "additionalProperties": False, "properties": ordered}


def tokenize_schema() -> dict[str, Any]:
    """All fields of a request for token ids."""
    job = GenerationJob.model_json_schema(ref_template=REF)["properties"]
    fields = {
        name: job[name] for name in ("model", "prompt", "messages", *sorted(COMPLETION_SAME | CHAT_SAME))
    }
    neutral = {name: ignored(NEUTRAL[name]) for name in TOKENIZE_NEUTRAL}
    told = {"type": "boolean", "description": "Also say what each of them stands for."}
    properties = {**neutral, **fields, "tools": job["tools"], "return_token_strs": told}
    one_of = [{"required": ["prompt"]}, {"required": ["messages"]}]
    return {"type": "object", "oneOf": one_of, "additionalProperties": False, "properties": properties}


def detokenize_schema() -> dict[str, Any]:
    """All fields of a request for the text of token ids."""
    job = GenerationJob.model_json_schema(ref_template=REF)["properties"]
    tokens = {**job["prompt_ids"], "description": "The ids."}
    properties = {"model": job["model"], "tokens": tokens}
    return {
        "type": "object",
        "required": ["tokens"],
        "additionalProperties": False,
        "properties": properties,
    }


def _with_zero(schema: dict[str, Any]) -> dict[str, Any]:
    """A number above zero, or zero, at which the likeliest token is drawn."""
    rest = {name: value for name, value in schema.items() if name != "exclusiveMinimum"}
    return {**rest, "minimum": 0, "description": f"{schema['description']} 0: the likeliest token alone."}


def _turns_schema(message: dict[str, Any]) -> dict[str, Any]:
    """Turns as OpenAI's clients hold them, answers too. message: the schema of ours."""
    ours = message["properties"]
    parts = {"type": "array", "items": {"type": "object"}, "maxItems": MAX_PARTS}
    properties = {
        **ours,
        "role": {**ours["role"], "enum": [*ours["role"]["enum"], "function"]},
        "content": {
            "anyOf": [{"type": "string"}, parts, {"type": "null"}],
            "description": "What is said: a text, or parts of the type `text`, or `refusal` in an answer.",
        },
        **{name: {"description": told} for name, told in ANSWER_FIELDS.items()},
    }
    return {
        "type": "array",
        "maxItems": MAX_MESSAGES,
        "items": {**message, "title": "ChatTurn", "properties": properties},
    }


def ignored(one: Neutral) -> dict[str, Any]:
    """The schema of a field that changes nothing."""
    if one.values is None:
        return {"description": f"Ignored: {one.why}."}
    return {"enum": list(one.values), "description": f"No other value is taken: {one.why}."}
