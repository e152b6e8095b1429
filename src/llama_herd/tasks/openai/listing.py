"""A page of OpenAI's lists."""

from typing import Any, Literal

from pydantic import Field, model_validator

from llama_herd.tasks.openai.answer_schema import Answered


class Listing(Answered):
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
