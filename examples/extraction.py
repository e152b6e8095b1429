"""Facts as objects: the first task of a chain answers in JSON of a class. Needs a worker, as its neighbours.

celery --workdir examples -A extraction worker
python examples/extraction.py
"""

import os
from typing import Any, Literal

from celery import Celery, chain
from pydantic import BaseModel, ConfigDict, Field

url = os.environ.get("HERD_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery("shop", broker=url, backend=url)


class Animal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["fox", "owl", "otter"]
    legs: int = Field(ge=0, le=8)


FORM = {"type": "json_schema", "json_schema": {"name": "Animal", "schema": Animal.model_json_schema()}}


@app.task(name="shop.describe")
def describe(result: dict[str, Any]) -> str:
    animal = Animal.model_validate_json(result["text"])
    return f"{animal.kind}: {animal.legs} legs"


if __name__ == "__main__":
    job = {"prompt": "Once upon a time there was an owl, as JSON: ", "response_format": FORM}
    asked = app.signature("herd.generate", kwargs=job, queue="herd.tales")
    print(chain(asked, describe.s()).apply_async().get(timeout=60))
