"""Vectors and ranks in a shop's chains: what one task finds is embedded, or ranked, and the next one has it.

Needs a worker of each model:

herd worker --model Qwen3-Embedding-0.6B --served-model-name embedder
herd worker --model Qwen3-Reranker-0.6B --served-model-name reranker
celery --workdir examples -A celery_vectors worker
python examples/celery_vectors.py
"""

import os
from typing import Any

from celery import Celery, chain, group

from llama_herd.tasks.links import route_links

url = os.environ.get("HERD_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery("shop", broker=url, backend=url)
app.conf.task_default_queue = "shop"
route_links(app)  # links of jobs come home into that queue

DOCUMENTS = ["Alpacas hum.", "Who spits? Llamas do.", "Owls see at night."]
embed = app.signature("herd.embed", queue="herd.embedder")
rerank = app.signature("herd.rerank", queue="herd.reranker", kwargs={"query": "Who spits?"})


@app.task(name="shop.search")
def search(words: str) -> list[str]:
    """What a search finds: a list of texts, as `herd.embed` and `herd.rerank` take it."""
    return DOCUMENTS


@app.task(name="shop.store")
def store(told: dict[str, Any]) -> str:
    """A vector for each text, in their order: lists of floats."""
    vectors = told["vectors"]
    return f"{len(vectors)} vectors, {told['usage']['prompt_tokens']} tokens"


@app.task(name="shop.best")
def best(told: dict[str, Any]) -> str:
    """The ranks of all documents, the best first: index, logit, and score from 0 to 1."""
    return DOCUMENTS[told["ranks"][0]["index"]]


if __name__ == "__main__":
    print(chain(search.s("spit"), embed, store.s()).apply_async().get(timeout=60))
    print(chain(search.s("spit"), rerank, best.s()).apply_async().get(timeout=60))
    lots = group(embed.clone(args=[[text] * 256]) for text in DOCUMENTS)  # as many as a job may have
    print(sum(len(told["vectors"]) for told in lots.apply_async().get(timeout=60)))
