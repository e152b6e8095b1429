"""The schema of an OpenAI request as it is taken here, made of the classes that check it."""

from typing import Any

from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.openai.request import CHAT, CHAT_NAMES, CHAT_SAME, NEUTRAL, SAME, Endpoint
from llama_herd.tasks.structured_outputs import FORM_FIELDS

#: How one of our definitions is referred to.
REF = "#/components/schemas/{model}"

_STREAM = {
    "stream": {"type": "boolean", "default": False, "description": "Send the text as it comes."},
    "stream_options": {
        "type": "object",
        "description": "Only with stream.",
        "properties": {
            "include_usage": {"type": "boolean", "description": "The last chunk counts the tokens."},
            "include_obfuscation": {"const": False},
        },
        "additionalProperties": False,
    },
}


def body_schema(endpoint: Endpoint) -> dict[str, Any]:
    """All fields that a body may have. Others are refused by name."""
    schema = GenerationJob.model_json_schema(ref_template=REF)
    job, sampling = schema["properties"], schema["$defs"]["SamplingParams"]["properties"]
    fields: dict[str, Any] = {"model": job["model"], **{name: sampling[name] for name in sorted(SAME)}}
    fields |= {name: job[name] for name in sorted(FORM_FIELDS)}
    fields["stop"] = {"anyOf": [{"type": "string"}, sampling["stop"]], "description": "Ends the output."}
    fields["top_k"] = {**sampling["top_k"], "minimum": -1, "description": "Keep the k likeliest. 0, -1: all."}
    fields |= {name: _ignored(values) for name, values in NEUTRAL.items()} | _STREAM
    if endpoint == CHAT:
        fields["messages"] = job["messages"]
        fields |= {name: sampling[ours] for name, ours in CHAT_NAMES.items()}
        fields |= {name: job[name] for name in ("tools", *sorted(CHAT_SAME))}
        fields |= {name: sampling[name] for name in ("logprobs", "top_logprobs")}
    else:
        prompt = [job["prompt"], job["prompt_ids"]]
        fields["prompt"] = {"anyOf": prompt, "description": "The text to continue, or its token ids."}
        fields["logprobs"] = {
            **sampling["top_logprobs"],
            "description": "Report each token's log-probability, and as many of the likeliest tokens.",
        }
        fields["tools"] = {"const": [], "description": "Only chats have some."}
    source = "messages" if endpoint == CHAT else "prompt"
    # In the order in which people write them.
    first = ("model", source, "max_tokens", "stream")
    ordered = {name: fields[name] for name in (*first, *sorted(fields.keys() - set(first)))}
    return {"type": "object", "required": [source], "additionalProperties": False, "properties": ordered}


def _ignored(values: tuple[Any, ...] | None) -> dict[str, Any]:
    if values is None:
        return {"description": "Ignored."}
    return {"enum": list(values), "description": "Has no effect, and no other value is taken."}
