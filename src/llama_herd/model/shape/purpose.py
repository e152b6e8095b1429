"""What a model is for, as its files say it: it writes text, makes vectors of texts, or ranks documents."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from llama_herd.model.shape.pooling import Override, Pooling

#: The tokens that Qwen3-Reranker answers with, the better one first.
YES_NO = ("yes", "no")
#: Qwen3-Reranker's template, as its card has it.
CARD_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclass(frozen=True)
class Generates:
    """It writes text, token by token."""

    @property
    def sentence(self) -> str:
        """For a person."""
        return "generates text"


@dataclass(frozen=True)
class Dense:
    """A layer behind the pooling: activation(W x + b)."""

    path: Path  # of its weights
    in_features: int
    out_features: int
    has_bias: bool
    activation: str  # "Identity" or "Tanh"


@dataclass(frozen=True)
class Embeds:
    """It makes a vector of a text: pooled, through the dense layers, then normalised."""

    pooling: Pooling
    is_normalised: bool = True  # to length 1
    dense: tuple[Dense, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)  # what is put before a text, by name
    default_prompt: str | None = None  # the name of the one for texts that name none
    pools_prompt: bool = True  # whether a prompt's tokens count in the mean
    max_tokens: int | None = None  # of a text; None: as many as the model was made for

    def width(self, hidden_size: int) -> int:
        """Numbers of a vector."""
        return self.dense[-1].out_features if self.dense else hidden_size

    @property
    def sentence(self) -> str:
        """For a person."""
        of = {Pooling.LAST: "last token", Pooling.MEAN: "mean of all tokens", Pooling.CLS: "first token"}
        layers = f", {len(self.dense)} dense layers" if self.dense else ""
        return f"embeds texts: {of[self.pooling]}{layers}, {'' if self.is_normalised else 'not '}normalised"


@dataclass(frozen=True)
class Ranks:
    """It says how well a document answers a query: by the logit of one token, less that of another.

    Tokens are given by their ids, or by their texts; none: the file has rows of its own for them.
    """

    labels: tuple[int | str, ...] = ()
    template: str = ""  # Jinja, of messages by a "query" and a "document"; empty: the chat template
    instruction: str = ""  # of a message by "system" before them; empty: there is none

    @property
    def sentence(self) -> str:
        """For a person."""
        by = ", ".join(map(str, self.labels)) if self.labels else ", ".join(YES_NO)
        return f"ranks documents: by the logits of {by}"


Purpose: TypeAlias = Generates | Embeds | Ranks


def overridden(purpose: Purpose, override: Override, source: str) -> tuple[Purpose, tuple[str, ...]]:
    """The purpose that HERD_POOLING gives a model, and a warning if that is not its own."""
    if override == "auto":
        return purpose, ()
    chosen: Purpose
    if override == "rank":
        chosen = purpose if isinstance(purpose, Ranks) else Ranks(YES_NO, jinja_of(CARD_TEMPLATE))
    elif isinstance(purpose, Embeds):
        chosen = replace(purpose, pooling=Pooling(override))
    else:
        chosen = Embeds(Pooling(override))
    if chosen == purpose:
        return purpose, ()
    warning = f"by its files it {purpose.sentence}, but HERD_POOLING={override}, so it {chosen.sentence}"
    return chosen, (f"{source}: {warning}",)


def jinja_of(template: str) -> str:
    """The template in Jinja of one in which `{query}` and `{document}` stand for themselves."""
    values = {"{query}": "messages[-2].content", "{document}": "messages[-1].content"}
    parts = re.split(r"(\{query\}|\{document\})", template)
    written = [values.get(part, json.dumps(part, ensure_ascii=False)) for part in parts if part]
    return "".join(f"{{{{ {part} }}}}" for part in written)
