"""Requests for ranks, in the form that Jina, Cohere, vLLM and llama.cpp share, as our jobs, and the answer.

Sources: the references of Jina's and Cohere's rerank endpoints, and of vLLM's.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.openai.answer_schema import AnswerModel
from llama_herd.tasks.openai.embeddings import TextBody
from llama_herd.tasks.openai.other_fields import unknown_fields
from llama_herd.tasks.protocol.ranking_job import RankingJob, best_first, check_top_n, ranking_sources
from llama_herd.tasks.protocol.text_job import count_from
from llama_herd.tasks.settings import Settings

RERANK: Literal["/v1/rerank"] = "/v1/rerank"
#: Most documents of a request.
MAX_DOCUMENTS = 2048
SAME = ("model", "priority")
KNOWN = ("query", "documents", "top_n", "return_documents", "user", *SAME)


class RankBody(TextBody[RankingJob]):
    """A request for ranks: how many documents are wanted, and whether with their texts."""

    source = "documents"

    def __init__(self, body: Mapping[str, Any], settings: Settings) -> None:
        given = {name: value for name, value in body.items() if value is not None}
        errors = unknown_fields(given, KNOWN)
        self.top_n, self.has_texts = given.get("top_n"), given.get("return_documents", False)
        try:
            check_top_n(self.top_n)
        except InvalidJob as error:
            errors += error.fields
        if not isinstance(self.has_texts, bool):
            errors.append(FieldError("return_documents", "must be true or false"))
        if not isinstance(given.get("query"), str) or not given["query"]:
            errors.append(FieldError("query", "must be a text that is not empty"))
        self.documents = _documents_of(given.get("documents"), errors)
        self.jobs = []
        if not errors:
            sources = ranking_sources(given["query"], self.documents, settings.max_prompt_bytes)
            fields = {name: given[name] for name in SAME if name in given}
            for source in sources:
                try:
                    self.jobs.append(RankingJob.parse(source | fields, settings))
                except InvalidJob as error:
                    raise count_from(sum(job.num_texts for job in self.jobs), error) from None
        if errors:
            raise InvalidJob(list(dict.fromkeys(errors)))


def _documents_of(given: Any, errors: list[FieldError]) -> list[str]:
    """The texts of documents, which may be objects with a `text`, as clients of Cohere and Jina send them."""
    found = given if isinstance(given, list) else []
    texts = [one["text"] if isinstance(one, dict) and one.keys() == {"text"} else one for one in found]
    wrong = next((at for at, one in enumerate(texts) if not (one and isinstance(one, str))), None)
    if not texts:
        errors.append(FieldError("documents", "must be a list of texts, or of objects with a text"))
    elif len(texts) > MAX_DOCUMENTS:
        errors.append(FieldError("documents", f"must be at most {MAX_DOCUMENTS}, got {len(texts)}"))
    elif wrong is not None:
        errors.append(FieldError("documents", f"document {wrong} must be a text that is not empty"))
    return texts


class RankedText(AnswerModel):
    """The text of a document."""

    text: str = Field(description="The text.")


class RankedDocument(AnswerModel):
    """One document, and how well it answers the query."""

    index: int = Field(description="Number of the document.")
    relevance_score: float = Field(description="From 0 to 1; documents are sorted by the logit behind it.")
    document: RankedText | None = Field(default=None, description="Its text, with `return_documents`.")


class RankUsage(AnswerModel):
    """Number of tokens of all documents, each with the query."""

    prompt_tokens: int = Field(description="Tokens of all documents, each with the query.")
    total_tokens: int = Field(description="The same.")


class RankList(AnswerModel):
    """The best documents, the best first."""

    model: str = Field(description="The model that was asked.")
    results: tuple[RankedDocument, ...] = Field(description="As many as were asked for; absent `top_n`: all.")
    usage: RankUsage = Field(description="Tokens of all documents.")

    @classmethod
    def of(cls, logits: Iterable[float], asked: RankBody, model: str, num_tokens: int) -> "RankList":
        """The answer to a request. logits: those of all its documents, in their order."""
        ranks = best_first(logits, asked.top_n)
        results = tuple(
            RankedDocument(
                index=one.index,
                relevance_score=one.score,
                document=RankedText(text=asked.documents[one.index]) if asked.has_texts else None,
            )
            for one in ranks
        )
        usage = RankUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
        return cls(model=model, results=results, usage=usage)


def rank_schema() -> dict[str, Any]:
    """The schema of a request."""
    job = RankingJob.model_json_schema()["properties"]
    text = {"type": "string", "minLength": 1}
    own = {"type": "object", "required": ["text"], "properties": {"text": {**text, "description": "It."}}}
    many = {"type": "array", "items": {"anyOf": [text, own]}, "minItems": 1, "maxItems": MAX_DOCUMENTS}
    fields = {
        "query": {**text, "description": "What the documents are to answer."},
        "documents": {**many, "description": "Texts, or objects with a text."},
        "top_n": {"type": "integer", "minimum": 1, "description": "So many of the best; absent: all."},
        "return_documents": {"type": "boolean", "description": "Whether the answer has their texts."},
        "user": {"description": "Ignored: bookkeeping of others."},
        **{name: job[name] for name in SAME},
    }
    required = ["query", "documents"]
    return {"type": "object", "required": required, "properties": fields, "additionalProperties": False}
