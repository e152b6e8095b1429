"""Sampling parameters. Where vLLM has the same field, its name, meaning and range are vLLM's."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from llama_herd.tasks.protocol.strict_model import MaxItems, StrictModel, check_length

if TYPE_CHECKING:
    from llama_herd.tasks.settings import Settings

DEFAULT_MAX_TOKENS = 256
MAX_STOP_BYTES = 128
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 8

#: Longer than any context, but small enough that sums stay exact in Lua, below 2^53.
MAX_INT = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]


class SamplingParams(StrictModel):
    """How a job's tokens are chosen. Jobs with different parameters run in one batch."""

    n: int = Field(
        default=1,
        ge=1,
        le=MAX_CHOICES,
        description="Number of outputs for the prompt, each sampled independently.",
    )
    max_tokens: int = Field(
        default=DEFAULT_MAX_TOKENS,
        ge=0,
        le=MAX_INT,
        description="Most tokens to generate. Workers have a limit of their own, HERD_MAX_TOKENS_LIMIT. "
        "0: only with `echo` or `prompt_logprobs`.",
    )
    min_tokens: int = Field(
        default=0, ge=0, le=MAX_INT, description="The output does not stop before it has this many tokens."
    )
    temperature: float = Field(default=1.0, ge=0, le=2, description="0 always takes the most likely token.")
    top_k: int = Field(default=0, ge=0, le=MAX_INT, description="Keep the k most likely tokens. 0: all.")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Keep the most likely tokens until their probabilities add up to this.",
    )
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="Drop tokens less likely than min_p times the most likely one."
    )
    top_n_sigma: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="Drop tokens whose logits are more than this many standard deviations below the largest. "
        "0: keep all.",
    )
    repetition_penalty: float = Field(
        default=1.0,
        ge=0.01,
        le=10,
        description="Above 1: tokens that the prompt or the output contains become less likely.",
    )
    presence_penalty: float = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="Subtracted from the logit of each token that the output contains.",
    )
    frequency_penalty: float = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="Subtracted once for each time that the output contains the token.",
    )
    repeat_last_n: int = Field(
        default=-1,
        ge=-1,
        le=MAX_INT,
        description="The penalties consider the last N tokens. -1: all of them.",
    )
    logit_bias: Mapping[TokenId, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default={}, max_length=MAX_BIASES, description="Added to the logits of these ids."
    )
    seed: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="Absent: derived from the id of the job."
    )
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], MaxItems(MAX_STOPS)] = Field(
        default=(), description=f"Strings that end the output, each 1 to {MAX_STOP_BYTES} UTF-8 bytes long."
    )
    stop_token_ids: Annotated[tuple[TokenId, ...], MaxItems(MAX_STOPS)] = Field(
        default=(), description="Token ids that end the output. The id is in `ids`, but not in the text."
    )
    ignore_eos: bool = Field(default=False, description="Continue after an end-of-sequence token.")
    logprobs: bool = Field(
        default=False,
        description="Report the log-probability of each token, before penalties and temperature.",
    )
    top_logprobs: int = Field(
        default=0,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Also report this many of the most likely tokens at each position.",
    )
    prompt_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Report the log-probability of each prompt token, and of the N most likely tokens there.",
    )
    truncate_prompt_tokens: int | None = Field(
        default=None,
        ge=-1,
        description="Keep the last N tokens of a longer prompt. -1: as many as leave room for max_tokens. "
        "Absent: a prompt that is too long is an error.",
    )

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _read_json_keys(cls, value: Any) -> Any:
        """Read keys of digits as numbers, since JSON keys are strings."""
        if not isinstance(value, Mapping):
            return value
        check_length(value, MAX_BIASES)
        return {_number_of_key(key): bias for key, bias in value.items()}

    @field_validator("logit_bias")
    @classmethod
    def _sort_biases(cls, value: Mapping[int, float]) -> Mapping[int, float]:
        return dict(sorted(value.items()))

    @field_validator("max_tokens")
    @classmethod
    def _check_max_tokens(cls, value: int, info: ValidationInfo) -> int:
        limits: Settings | None = (
            info.context
        )  # given by `GenerationJob.parse`, the check of jobs from outside
        if limits is not None and value > limits.max_tokens_limit:
            raise ValueError(f"must be at most {limits.max_tokens_limit}, got {value}")
        return value

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _check_truncation(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("must be -1 or at least 1, got 0")
        return value

    @field_validator("stop")
    @classmethod
    def _check_stop_lengths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        longest = max((len(text.encode()) for text in value), default=0)
        if longest > MAX_STOP_BYTES:
            raise ValueError(f"each must be at most {MAX_STOP_BYTES} UTF-8 bytes long, got {longest}")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens, {self.max_tokens}, got {self.min_tokens}"
            )
        if self.top_logprobs and not self.logprobs:
            raise ValueError(
                f"top_logprobs needs logprobs=true, got top_logprobs={self.top_logprobs} and logprobs=false"
            )
        if self.n > 1 and self.temperature == 0:
            raise ValueError(
                f"n must be 1 when temperature is 0, since all outputs would be equal, got {self.n}"
            )
        return self


def _number_of_key(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 else key
