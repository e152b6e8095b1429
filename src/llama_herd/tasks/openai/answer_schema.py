"""OpenAI's answers as they are given here, for the API's description.

Models and errors are made of these classes. Completions and chats are written as they come, and tests hold
them to these.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from llama_herd.tasks.protocol.events import FinishReason, StopReason


class AnswerModel(BaseModel):
    """Base of all parts of an answer: these fields and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenScore(AnswerModel):
    """A token and its log-probability."""

    token: str = Field(description="Its text; bytes that are not whole characters become U+FFFD.")
    logprob: float = Field(description="Its log-probability.")
    bytes: tuple[int, ...] | None = Field(description="Its bytes; null if no worker has written them.")


class DrawnScore(TokenScore):
    """A drawn token, with the likeliest ones in its place."""

    top_logprobs: tuple[TokenScore, ...] = Field(description="The likeliest tokens there.")


class ChatLogprobs(AnswerModel):
    """The scores of an output of a chat."""

    content: tuple[DrawnScore, ...] = Field(description="One for each token.")
    refusal: None = Field(description="Always null.")


class CompletionLogprobs(AnswerModel):
    """The scores of an output of a completion, as parallel lists.

    A token that is no whole characters is named as at OpenAI: `bytes:\\xe2\\x80`.
    """

    tokens: tuple[str, ...] = Field(description="The texts of the tokens.")
    token_logprobs: tuple[float | None, ...] = Field(
        description="Their log-probabilities; null for the first token of a prompt."
    )
    top_logprobs: tuple[dict[str, float] | None, ...] = Field(
        description="The likeliest tokens in place of each, and the token itself, by their texts. Of several "
        "with one text others than the token itself and the likeliest are named `token_id:5`. Null for the "
        "first token of a prompt."
    )
    text_offset: tuple[int, ...] = Field(
        description="Where each begins, in characters of the text; one within a character, where that does."
    )


class PromptScore(AnswerModel):
    """A token of the prompt: its log-probability, and the likeliest tokens in its place."""

    logprob: float = Field(description="Its log-probability.")
    top: dict[str, float] = Field(description="The likeliest tokens there, by their names.")


class OutputEnd(AnswerModel):
    """One output, and why it ended."""

    index: int = Field(description="Which of the job's outputs.")
    finish_reason: FinishReason | Literal["tool_calls"] | None = Field(
        description="Why it ended: `tool_calls` if it has called a tool; null in a stream while it goes on."
    )
    stop_reason: StopReason = Field(
        default=None, description="vLLM's: the stop string or token id that matched, else null."
    )
    prompt_logprobs: tuple[PromptScore | None, ...] | None = Field(
        default=None,
        description="vLLM's, if asked for, and not in a stream: one for each token of the prompt, null for "
        "the first.",
    )


class CompletionChoice(OutputEnd):
    """One output of a completion, or the next piece of it."""

    text: str = Field(description="Its text.")
    logprobs: CompletionLogprobs | None = Field(
        description="The scores of its tokens; null unless asked for."
    )


class CalledFunction(AnswerModel):
    """A tool and what it is to be called with."""

    name: str = Field(description="Name of the tool.")
    arguments: str = Field(description="Its arguments: the text of a JSON object.")


class ChatToolCall(AnswerModel):
    """A call of a tool that the model asks for."""

    id: str = Field(description="Names the call in the turn that answers it.")
    type: Literal["function"] = Field(description="Kind of the tool.")
    function: CalledFunction = Field(description="What is called.")


class ChatToolCallDelta(ChatToolCall):
    """A call in a stream: always a whole one."""

    index: int = Field(description="Number of the call in its output.")


class ChatAnswerMessage(AnswerModel):
    """The message of the model."""

    role: Literal["assistant"] = Field(description="Who speaks.")
    content: str | None = Field(description="What it says; null if it only calls tools.")
    refusal: None = Field(description="Always null.")
    reasoning_content: str | None = Field(
        default=None, description="What it thought before; absent if it did not."
    )
    tool_calls: tuple[ChatToolCall, ...] | None = Field(
        default=None, description="Its calls; absent if there are none."
    )


class ChatDelta(AnswerModel):
    """The next piece of what the model says; the first one says who speaks, the last one is empty."""

    role: Literal["assistant"] | None = Field(default=None, description="Who speaks.")
    content: str | None = Field(default=None, description="The next piece.")
    refusal: None = Field(default=None, description="Always null.")
    reasoning_content: str | None = Field(default=None, description="The next piece of what it thinks.")
    tool_calls: tuple[ChatToolCallDelta, ...] | None = Field(default=None, description="The next calls.")


class ChatChoice(OutputEnd):
    """One output of a chat."""

    message: ChatAnswerMessage = Field(description="The output.")
    logprobs: ChatLogprobs | None = Field(description="The scores of its tokens; null unless asked for.")


class ChatDeltaChoice(OutputEnd):
    """The next piece of one output of a chat."""

    delta: ChatDelta = Field(description="The next piece of what the model says.")
    logprobs: ChatLogprobs | None = Field(description="The scores of its tokens; null unless asked for.")


class Head(AnswerModel):
    """Fields at the beginning of every answer."""

    id: str = Field(description="cmpl- or chatcmpl-, and the id of the job.")
    created: int = Field(description="When the answer was made, in seconds since 1970.")
    model: str | None = Field(description="The model that was asked.")
    system_fingerprint: str = Field(
        description="The version of llama-herd, and a digest of the model's weights."
    )


class PromptTokensDetails(AnswerModel):
    """More about the tokens of the prompts."""

    cached_tokens: int = Field(description="How many of them came from a worker's prefix cache.")


class AnswerUsage(AnswerModel):
    """Number of tokens of the prompts and of the outputs."""

    prompt_tokens: int = Field(description="Tokens of the prompts.")
    completion_tokens: int = Field(description="Tokens of all outputs.")
    total_tokens: int = Field(description="Both together.")
    prompt_tokens_details: PromptTokensDetails | None = Field(
        default=None, description="More about the prompts; absent if a worker did not count it."
    )


class Completion(Head):
    """The answer to a completion. In a stream each event is one, with the next pieces."""

    object: Literal["text_completion"] = Field(description="Type of this object.")
    choices: tuple[CompletionChoice, ...] = Field(
        description="The outputs; none in a stream's count of tokens."
    )
    usage: AnswerUsage | None = Field(
        default=None, description="Tokens of the whole job; in a stream if asked for."
    )


class ChatCompletion(Head):
    """The answer to a chat."""

    object: Literal["chat.completion"] = Field(description="Type of this object.")
    choices: tuple[ChatChoice, ...] = Field(description="The outputs.")
    usage: AnswerUsage | None = Field(description="Tokens of the whole job.")


class ChatCompletionChunk(Head):
    """An event of a streamed chat."""

    object: Literal["chat.completion.chunk"] = Field(description="Type of this object.")
    choices: tuple[ChatDeltaChoice, ...] = Field(description="The next piece; none in the count of tokens.")
    usage: AnswerUsage | None = Field(default=None, description="Tokens of the whole job, if asked for.")


class ObjectList(AnswerModel):
    """Fields of every page of a list; subclasses add `data`, from which the ids are taken."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    first_id: str | None = Field(default=None, description="Id of the first of them.")
    last_id: str | None = Field(
        default=None, description="Id of the last of them, after which the next page begins."
    )
    has_more: bool = Field(description="Whether there is a next page.")

    @model_validator(mode="before")
    @classmethod
    def _with_ids(cls, fields: dict[str, Any]) -> dict[str, Any]:
        data = fields["data"]
        return {**fields, "first_id": data[0].id, "last_id": data[-1].id} if data else fields


class Model(AnswerModel):
    """A model that jobs are taken for."""

    id: str = Field(description="Its name.")
    object: Literal["model"] = Field(default="model", description="Type of this object.")
    created: int = Field(
        default=0, description="When the first of its workers had it, in unix seconds; 0: none has."
    )
    owned_by: str = Field(default="llama-herd", description="Always llama-herd.")
    max_model_len: int | None = Field(
        default=None,
        description="Most tokens of a prompt together with its output, at each worker; null: not known.",
    )


class ModelList(AnswerModel):
    """The models that jobs are taken for."""

    object: Literal["list"] = Field(default="list", description="Type of this object.")
    data: tuple[Model, ...] = Field(description="The models.")


class ErrorWords(AnswerModel):
    """The error in an answer: a sentence, OpenAI's type, the wrong field, the code."""

    message: str = Field(description="What went wrong, in a sentence.")
    type: str = Field(description="OpenAI's type of the status.")
    param: str | None = Field(description="The field that is wrong; null if it is not a field.")
    code: str = Field(description="Code of the error.")


class ErrorAnswer(AnswerModel):
    """The answer to a request that went wrong."""

    error: ErrorWords = Field(description="The error.")
