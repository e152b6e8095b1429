"""vLLM: ids go in by /v1/completions, and come out of its stream as they are drawn."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic_core import from_json

from llama_herd.tasks.protocol.sampling import SamplingParams
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
    JobRefused,
    ServerFacts,
    ServerFault,
    TakeTokens,
    checked,
    complaint_in,
    derived_seed,
    generated,
)
from llama_herd.worker.foreign.http import ConnectionLost, HttpServer
from llama_herd.worker.grammars.served_forms import ServedConstraint

#: A server without it has one queue, first come, first served, and says nothing of it.
PRIORITY_FLAG = "--scheduling-policy priority"
ANEW = FieldUse("passed", "after a resume it counts from there")

#: Tokens of an output may come together, as many as are drawn in this part of the time between two events.
GATHERED_PART = 0.5

_KV_USAGE = "vllm:kv_cache_usage_perc"
_TOKEN = "token_id:"
_COMPLETIONS = "/v1/completions"


class Vllm(Backend):
    """A vLLM server, driven by token ids alone: stop strings and texts are ours."""

    name = "vllm"
    fields: ClassVar[Mapping[str, FieldUse]] = {
        **OUR_FIELDS,
        **dict.fromkeys(
            (
                *("sampling.max_tokens", "sampling.min_tokens", "sampling.temperature", "sampling.top_k"),
                *("sampling.top_p", "sampling.min_p", "sampling.logit_bias", "sampling.stop_token_ids"),
                *("sampling.ignore_eos", "sampling.logprobs", "sampling.top_logprobs"),
                *("sampling.repetition_penalty", "sampling.prompt_logprobs"),
            ),
            PASSED,
        ),
        "sampling.seed": FieldUse("passed", "a repeat is equal, a resume draws other noise"),
        "sampling.presence_penalty": ANEW,
        "sampling.frequency_penalty": ANEW,
        "sampling.repeat_last_n": FieldUse("refused", "its penalties look at all tokens"),
        "sampling.top_n_sigma": FieldUse("refused"),
        "priority": FieldUse(
            "passed", f"counts where it runs with {PRIORITY_FLAG}; the worker goes by it, too"
        ),
        "response_format": FieldUse("passed", "such an answer is published whole"),
        "structured_outputs": FieldUse("passed", "such an answer is published whole"),
    }
    forms = ("json", "regex", "choice", "grammar")

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        self._facts = ServerFacts("", 0)

    async def facts(self, wanted: str, *, is_new: bool) -> ServerFacts:
        answer = checked(await self.server.get("/v1/models", FACTS_S))
        listed = [one for one in (answer.json or {}).get("data", ()) if isinstance(one, dict)]
        if not listed:
            raise ServerFault("/v1/models lists no model")
        named = next((one for one in listed if one.get("id") == wanted), listed[0])
        max_length = named.get("max_model_len") or listed[0].get("max_model_len") or 0
        model, takes_priorities = str(named.get("id")), self._facts.takes_priorities
        if is_new:
            takes_priorities = await self._takes_priorities(model)
        self._facts = ServerFacts(model, int(max_length), None, takes_priorities, await self._version())
        return self._facts

    async def _version(self) -> str:
        answer = await self.server.get("/version", FACTS_S)
        return str((answer.json or {}).get("version", "")) if answer.status == 200 else ""

    async def _takes_priorities(self, model: str) -> bool:
        """Whether requests may have one: it refuses any, unless it was started so."""
        body = {"model": model, "prompt": [0], "max_tokens": 1, "priority": 1}
        return (await self.server.ask(_COMPLETIONS, body, FACTS_S)).status == 200

    async def tokenize(self, text: str) -> list[int] | None:
        body = {"model": self._facts.model, "prompt": text, "add_special_tokens": False}
        answer = await self.server.ask("/tokenize", body, FACTS_S)
        return list(answer.json["tokens"]) if answer.status == 200 else None

    async def kv_cache_usage(self) -> float | None:
        answer = await self.server.get("/metrics", FACTS_S)
        lines = (line for line in answer.content.decode(errors="replace").splitlines())
        return next((float(line.split()[-1]) for line in lines if line.startswith(_KV_USAGE)), None)

    async def generate(self, sequence: Sequence, take: TakeTokens, gap_s: float) -> Generated:
        if sequence.scores_prompt:
            await self._score(sequence)
        if not sequence.params.max_tokens:
            return Generated("length")
        stream = TokenStream(take, sequence.params.top_logprobs)
        body = self._body(sequence)
        if (num := num_together(sequence, gap_s)) > 1:
            body["stream_interval"] = num
        generated(await self.server.post(_COMPLETIONS, body, stream.write))
        return stream.outcome()

    async def _score(self, sequence: Sequence) -> None:
        """Have the prompt scored, by a request of its own: a stream brings no such scores."""
        num_top = sequence.params.prompt_logprobs
        scoring = {"stream": False, "max_tokens": 1, "min_tokens": 0, "prompt_logprobs": num_top}
        body = {**self._body(sequence), "prompt": sequence.prompt_ids, **scoring}
        body.pop("stream_options")
        answer = generated(await self.server.post(_COMPLETIONS, body))
        told = ((answer.json or {}).get("choices") or [{}])[0].get("prompt_logprobs")
        if not isinstance(told, list) or len(told) != len(sequence.prompt_ids):
            raise JobRefused("it told no log-probabilities of the prompt")
        pairs = zip(sequence.prompt_ids[1:], told[1:], strict=True)
        sequence.prompt_scores = [_prompt_score(token_id, entry, num_top or 0) for token_id, entry in pairs]

    def _body(self, sequence: Sequence) -> dict[str, Any]:
        """The request that continues a sequence. All is said: what is not has the server's own defaults."""
        params, num_ids = sequence.params, len(sequence.ids)
        room = sequence.max_length - len(sequence.prompt_ids) - num_ids
        return {
            "model": self._facts.model,
            "prompt": sequence.prompt_ids + sequence.ids,
            "max_tokens": max(1, min(params.max_tokens - num_ids, room)),
            "min_tokens": max(0, params.min_tokens - num_ids),
            **{name: getattr(params, name) for name in _SAME},
            "seed": derived_seed(sequence, 63),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **_scores_asked(params),
            **({"logit_bias": dict(params.logit_bias)} if params.logit_bias else {}),
            **({"priority": -sequence.priority} if self._facts.takes_priorities else {}),
            **_form_asked(sequence),
        }


#: Fields of our sampling that have the same name and meaning there.
_SAME = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "ignore_eos", "stop_token_ids"),
)


def num_together(sequence: Sequence, gap_s: float) -> int:
    """How many tokens may come together: a part costs the server, and us, nearly as much as a token."""
    most = MOST_TOGETHER if sequence.constraint else GATHERED_PART * sequence.handling.gather_s / gap_s
    return max(1, min(MOST_TOGETHER, round(most)))


def _scores_asked(params: SamplingParams) -> dict[str, Any]:
    if not params.logprobs:
        return {}
    return {"logprobs": params.top_logprobs, "return_tokens_as_token_ids": True}


def _form_asked(sequence: Sequence) -> dict[str, Any]:
    if not isinstance(sequence.constraint, ServedConstraint):
        return {}
    form = sequence.constraint.form
    value = form.text if form.kind in ("regex", "grammar") else from_json(form.text)
    return {"structured_outputs": {form.kind: value}}


def _prompt_score(token_id: int, entry: Mapping[str, Any], num_top: int) -> SampledToken:
    """The score of a prompt's token, and of the likeliest ones there."""
    ranked = sorted(entry.items(), key=lambda item: item[1].get("rank") or 0)
    top = tuple((int(one), float(told["logprob"])) for one, told in ranked)[:num_top]
    return SampledToken(token_id, float(entry[str(token_id)]["logprob"]), top)


class TokenStream:
    """Reads a stream of server-sent events as tokens, each with so many likely ones.

    Each event is one line of data. Comments between them are a proxy's, which keeps the connection open.
    """

    def __init__(self, take: TakeTokens, num_top: int = 0) -> None:
        self._take, self._num_top = take, num_top
        self._rest = b""
        self._reason: str | None = None
        self._num_cached: int | None = None
        self._error: Exception | None = None

    def write(self, content: bytes) -> None:
        """Take a part of the stream; hand on the tokens that are whole in it."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        tokens = list[SampledToken]()
        for line in lines:
            field, _, data = line.partition(b":")
            if field == b"data" and (data := data.strip()) and data != b"[DONE]":
                tokens += self._tokens(from_json(data))
        if tokens:
            self._take(tokens)

    def _tokens(self, told: Mapping[str, Any]) -> list[SampledToken]:
        """The tokens of an event. What else it says is noted."""
        tokens = list[SampledToken]()
        if usage := told.get("usage"):
            self._num_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if "choices" not in told:
            self._note_error(told)
        for choice in told.get("choices") or ():
            self._reason = choice.get("finish_reason") or self._reason
            if choice.get("text") and choice.get("token_ids") is None:  # `return_token_ids` is not known
                raise ServerFault("it tells a text without the ids of its tokens. Fix: a newer vLLM")
            ids, scores = choice.get("token_ids") or [], choice.get("logprobs")
            tokens += map(SampledToken, ids) if scores is None else _scored(ids, scores, self._num_top)
        return tokens

    def _note_error(self, told: Mapping[str, Any]) -> None:
        """Note an error that stands in the stream: a code of 4xx says that it is the job's."""
        if complaint := complaint_in(told):
            code = told["error"].get("code") if isinstance(told.get("error"), dict) else None
            is_of_job = isinstance(code, int) and 400 <= code < 500
            self._error = JobRefused(complaint) if is_of_job else ServerFault(complaint)

    def outcome(self) -> Generated:
        """How it has ended. Raises the error that stands in it, or ConnectionLost if it has no end."""
        if self._error is not None:
            raise self._error
        match self._reason:
            case "stop" | "length" as reason:
                return Generated(reason, self._num_cached)
            case None:
                raise ConnectionLost("the stream ended without a finish reason")
        raise ServerFault(f"the stream ended with the finish reason {self._reason}")


def _scored(ids: list[int], scores: Mapping[str, Any], num_top: int) -> Iterator[SampledToken]:
    """Tokens with their log-probabilities, and those of the likeliest ones: it tells the drawn one's, too."""
    tops = scores.get("top_logprobs") or [{}] * len(ids)
    for token_id, logprob, top in zip(ids, scores["token_logprobs"], tops, strict=True):
        ranked = sorted((top or {}).items(), key=lambda item: -item[1])[:num_top]
        likely = tuple((int(name.removeprefix(_TOKEN)), float(value)) for name, value in ranked)
        yield SampledToken(token_id, float(logprob), likely)
