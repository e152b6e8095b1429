"""Types of a job's fields, for type checkers and editors. GenerationJob checks the values."""

from collections.abc import Mapping, Sequence
from typing import Literal, Required, TypedDict

from pydantic import BaseModel

from llama_herd.tasks.protocol.chat import ChatMessage, Role, TextPart
from llama_herd.tasks.protocol.json_values import JsonObject
from llama_herd.tasks.protocol.sampling import SamplingParams


class TextPartFields(TypedDict):
    """Fields of TextPart."""

    type: Literal["text"]
    text: str


class MessageFields(TypedDict, total=False):
    """Fields of ChatMessage."""

    role: Required[Role]
    content: str | Sequence[TextPart | TextPartFields] | None
    name: str | None
    tool_call_id: str | None
    tool_calls: Sequence[JsonObject] | None
    reasoning_content: str | None


class SamplingFields(TypedDict, total=False):
    """Fields of SamplingParams."""

    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    logit_bias: Mapping[int, float] | Mapping[str, float]
    seed: int | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: int | None
    truncate_prompt_tokens: int | None


class JobFields(TypedDict, total=False):
    """Fields of GenerationJob."""

    v: Literal[1]
    prompt: str | None
    prompt_ids: Sequence[int] | None
    messages: Sequence[ChatMessage | MessageFields | Mapping[str, str]] | None
    add_special_tokens: bool | None
    echo: bool | None
    tokenizer_info: bool | None
    tools: Sequence[JsonObject] | None
    tool_choice: str | JsonObject | None
    parallel_tool_calls: bool | None
    documents: Sequence[JsonObject] | None
    chat_template: str | None
    chat_template_kwargs: JsonObject | None
    conversation_from: int | None
    model: str | None
    tenant: str
    priority: int
    deadline_ms: int | None
    timeout_s: float | None
    not_before: int | None
    keep_s: int | None
    retries: int | None
    retry_backoff_s: float | None
    flush_ms: int | None
    response_format: JsonObject | type[BaseModel] | None
    structured_outputs: JsonObject | None
    sampling: SamplingParams | SamplingFields
    metadata: Mapping[str, str]
    webhook: str | None
    webhook_secret: str | None


class SubmitFields(JobFields, total=False):
    """Fields of GenerationJob, and one of SamplingParams that may be given among them."""

    max_tokens: int


class RankFields(TypedDict, total=False):
    """Fields of RankingJob beside its query and documents."""

    model: str | None
    priority: int
    deadline_ms: int | None
    keep_s: int | None
    retries: int | None
    retry_backoff_s: float | None
    metadata: Mapping[str, str]


class EmbedFields(RankFields, total=False):
    """Fields of EmbeddingJob beside its texts."""

    prompt_name: str | None
    dimensions: int | None
    truncate: Literal["start", "end"] | None
