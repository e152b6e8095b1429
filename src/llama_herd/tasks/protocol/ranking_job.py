"""A job without tokens: how well documents answer a query, each by itself."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import exp
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.strict_model import MaxItems, NotEmpty, StrictModel
from llama_herd.tasks.protocol.text_job import MAX_TEXTS, GivenText, TextJob, listed, lots_of, num_bytes_of

RANK_SOURCES = ("query", "documents")


class Documents(StrictModel):
    """What is to be ranked, and by what."""

    v: Literal[1] = Field(default=1, description="Version of the protocol.")
    kind: Literal["rank"] = Field(default="rank", description="The kind of the job: ranks of documents.")
    query: GivenText = Field(description="What the documents are to answer, UTF-8 without NUL.")
    documents: Annotated[tuple[GivenText, ...], MaxItems(MAX_TEXTS), NotEmpty] = Field(
        description="The documents. Each has a rank, whatever the others are."
    )


# The fields of its JSON stand in the order of these classes, from the right.
class RankingJob(TextJob, Documents):
    """A query, and documents that are to be ranked by it. Times are unix milliseconds.

    Its result has for each document the logit of the better answer, less that of the other, as a vector of
    one number: sort by these. Their sigmoid is a score from 0 to 1.
    """

    source: ClassVar = "documents"

    @property
    def num_texts(self) -> int:
        return len(self.documents)

    @property
    def num_prompt_bytes(self) -> int:
        """Bytes of the documents, each with the query."""
        documents = sum(len(text.encode()) for text in self.documents)
        return documents + self.num_texts * len(self.query.encode())


def ranking_sources(query: str, documents: Sequence[str], max_bytes: int) -> Iterator[dict[str, Any]]:
    """The kind and the source of each job that these documents make, with as many as a job may have.

    Raises InvalidJob if they are no list.
    """
    for lot in lots_of(listed(documents, "documents"), num_bytes_of(query), max_bytes):
        yield {"kind": "rank", "query": query, "documents": lot}


@dataclass(frozen=True)
class Rank:
    """How well a document answers a query. index: its number, from 0. logit: by which it is ranked."""

    index: int
    logit: float

    @property
    def score(self) -> float:
        """From 0 to 1: the logit's sigmoid. Those near 1 can be equal where logits are not."""
        return 1 / (1 + exp(-self.logit)) if self.logit > MIN_LOGIT else 0.0


#: Below it the exponential overflows, and the sigmoid is 0.
MIN_LOGIT = -700.0


def check_top_n(top_n: object) -> None:
    """Raise InvalidJob if this is no number of documents."""
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise InvalidJob([FieldError("top_n", "must be a number of documents, 1 or more")])


def best_first(logits: Iterable[float], top_n: int | None) -> list[Rank]:
    """Ranks of documents by their logits, the best first."""
    return sorted(map(Rank, count(), logits), key=lambda one: -one.logit)[:top_n]
