"""llama-server: ids go in by /completion, and come out in chunks that are whole answers.

Its stream leaves out ids within a character, so an output is asked for in chunks. Each takes the prompt over
from the server's cache, and ends at a place that depends on its number alone: where an earlier attempt has
recorded a chunk, the next one goes on with the same seed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic_core import from_json

from llama_herd.errors import FieldError
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.json_values import json_text
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.foreign.backend import (
    FACTS_S,
    MOST_TOGETHER,
    OUR_FIELDS,
    PASSED,
    Backend,
    FieldUse,
    Generated,
    Reason,
    ServerFacts,
    ServerFault,
    TakeTokens,
    checked,
    derived_seed,
    generated,
)
from llama_herd.worker.foreign.http import ConnectionLost
from llama_herd.worker.grammars.schema_places import Path, with_parts
from llama_herd.worker.grammars.served_forms import ServedConstraint

#: Tokens of a chunk; the first one is shorter, so that something is seen soon.
CHUNK_TOKENS, FIRST_TOKENS = MOST_TOGETHER, 4

#: Tokens of the prompt that its cache had, by the name that it has among fields that were asked for.
CACHED = "timings/cache_n"
#: What is read of an answer: all of it would bring the prompt's text and all settings back.
RESPONSE_FIELDS = ("tokens", "stop_type", CACHED)

#: vLLM's order, and ours: the temperature comes before the filters.
SAMPLERS = ("penalties", "temperature", "top_n_sigma", "top_k", "top_p", "min_p")

NO_SCORES = FieldUse("refused", "it tells none of tokens within a character")
COUNTS_PROMPT = FieldUse("refused", "its penalty counts the prompt's tokens, too")


class LlamaServer(Backend):
    """llama.cpp's server, driven by token ids alone."""

    name = "llama-server"
    fields: ClassVar[Mapping[str, FieldUse]] = {
        **OUR_FIELDS,
        **dict.fromkeys(
            (
                *("sampling.max_tokens", "sampling.temperature", "sampling.top_k", "sampling.top_p"),
                *("sampling.min_p", "sampling.top_n_sigma", "sampling.repetition_penalty"),
                *("sampling.repeat_last_n", "sampling.logit_bias"),
            ),
            PASSED,
        ),
        "sampling.seed": FieldUse("passed", "another one for each chunk, which follows from it"),
        "sampling.min_tokens": FieldUse("passed", "no end may be drawn before; refused beside a form"),
        "sampling.stop_token_ids": FieldUse("ours", "what is drawn behind one is dropped"),
        "sampling.ignore_eos": FieldUse("ours", "it goes on behind an end"),
        "sampling.logprobs": NO_SCORES,
        "sampling.top_logprobs": NO_SCORES,
        "sampling.presence_penalty": COUNTS_PROMPT,
        "sampling.frequency_penalty": COUNTS_PROMPT,
        "sampling.prompt_logprobs": FieldUse("refused", "it tells none of a prompt"),
        "priority": FieldUse("ours", "in the worker: the server knows none"),
        "response_format": FieldUse("passed", "such an answer is published whole"),
        "structured_outputs": FieldUse(
            "passed", "no regex, and grammars in GBNF; the answer is published whole"
        ),
    }
    forms = ("json", "choice", "grammar")

    def _refusals(self, job: GenerationJob) -> Iterator[FieldError]:
        yield from super()._refusals(job)
        if job.output_form is not None and job.sampling.min_tokens:
            yield self.refusal("sampling.min_tokens", "beside a form, which may end before")

    def form_as_kept(self, form: OutputForm) -> OutputForm:
        if form.kind != "json":
            return form
        return form._replace(text=json_text(_required_first(from_json(form.text))))

    async def facts(self, wanted: str, *, is_new: bool) -> ServerFacts:
        told = checked(await self.server.get("/props", FACTS_S)).json or {}
        max_length = (told.get("default_generation_settings") or {}).get("n_ctx") or 0
        path = str(told.get("model_alias") or told.get("model_path") or "").rpartition("/")[2]
        return ServerFacts(
            path, int(max_length), told.get("total_slots"), version=told.get("build_info") or ""
        )

    async def tokenize(self, text: str) -> list[int] | None:
        body = {"content": text, "add_special": False, "parse_special": False}
        answer = await self.server.ask("/tokenize", body, FACTS_S)
        return list(answer.json["tokens"]) if answer.status == 200 else None

    async def generate(self, sequence: Sequence, take: TakeTokens, gap_s: float) -> Generated:
        num_cached: int | None = None
        while sequence.finish_reason is None:
            body = self._body(sequence)
            told = generated(await self.server.post("/completion", body)).json
            if not isinstance(told, dict) or not isinstance(told.get("tokens"), list):
                raise ConnectionLost("the answer has no tokens")
            if num_cached is None:
                num_cached = told.get(CACHED)
            take(list(map(SampledToken, told["tokens"])))
            if (reason := _end(told, body["n_predict"], sequence)) is not None:
                return Generated(reason, num_cached)
        return Generated("stop", num_cached)

    def _body(self, sequence: Sequence) -> dict[str, Any]:
        """The request for the next chunk. All is said: what is not has the server's own defaults."""
        params, num_ids = sequence.params, len(sequence.ids)
        is_early = num_ids < params.min_tokens
        ends = [[one, False] for one in params.stop_token_ids] if is_early else []
        return {
            "prompt": sequence.prompt_ids + sequence.ids,
            "n_predict": _chunk_end(sequence) - num_ids,
            "stream": False,
            "return_tokens": True,
            "cache_prompt": True,
            "response_fields": RESPONSE_FIELDS,
            "seed": derived_seed(sequence, 31),
            **{name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")},
            "top_n_sigma": params.top_n_sigma or -1.0,
            "repeat_penalty": params.repetition_penalty,
            "repeat_last_n": sequence.max_length if params.repeat_last_n < 0 else params.repeat_last_n,
            **dict.fromkeys(("presence_penalty", "frequency_penalty", "mirostat", "dynatemp_range"), 0),
            "samplers": SAMPLERS,
            "logit_bias": [*([token_id, bias] for token_id, bias in params.logit_bias.items()), *ends],
            "ignore_eos": is_early,
            **_form_asked(sequence),
        }


def _chunk_end(sequence: Sequence) -> int:
    """The number of tokens with which the next chunk ends; a form's grammar lasts for one request."""
    params, num_ids = sequence.params, len(sequence.ids)
    most = min(params.max_tokens, sequence.max_length - len(sequence.prompt_ids))
    if sequence.constraint is not None:
        return most
    end = FIRST_TOKENS if num_ids < FIRST_TOKENS else num_ids // CHUNK_TOKENS * CHUNK_TOKENS + CHUNK_TOKENS
    return min(most, end, params.min_tokens if num_ids < params.min_tokens else end)


def _required_first(schema: Any, path: Path = ()) -> Any:
    """A schema with its names in the order in which the server writes them."""
    if not isinstance(schema, Mapping):
        return schema
    found = with_parts(schema, path, _required_first)
    names, required = found.get("properties"), found.get("required")
    if isinstance(names, Mapping) and isinstance(required, list):
        found["properties"] = dict(sorted(names.items(), key=lambda one: one[0] not in required))
    return found


def _form_asked(sequence: Sequence) -> dict[str, Any]:
    if not isinstance(sequence.constraint, ServedConstraint):
        return {}
    form = sequence.constraint.form
    if form.kind == "json":
        return {"json_schema": from_json(form.text)}
    if form.kind == "choice":
        return {"grammar": f"root ::= {' | '.join(map(_literal, from_json(form.text)))}"}
    return {"grammar": form.text}


def _literal(text: str) -> str:
    """A text in a grammar of GBNF."""
    return json.dumps(text, ensure_ascii=False)


def _end(told: Mapping[str, Any], num_asked: int, sequence: Sequence) -> Reason | None:
    """Why the server goes on no more; None: it would."""
    num = len(told["tokens"])
    match told.get("stop_type"):
        case "eos":
            may_go_on = num and sequence.constraint is None  # another request would begin a form anew
            is_early = sequence.params.ignore_eos or len(sequence.ids) < sequence.params.min_tokens
            return None if may_go_on and is_early else "stop"
        case "limit":
            return None if num >= num_asked else "length"
    raise ServerFault(f"it stopped with the type {told.get('stop_type')}")
