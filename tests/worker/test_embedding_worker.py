"""A real worker with a model that embeds, or ranks."""

import json
from dataclasses import asdict
from math import exp
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from celery import Celery

from llama_herd import Client, GenerationError
from llama_herd.model.shape.pooling import Pooling
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import WorkerProcess
from tests.model.tiny_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES
from tests.model.tiny_reranker import (
    DOCUMENTS,
    NO,
    QUERY,
    YES,
    expected_logits,
    write_folder as write_rank_folder,
    write_gguf as write_rank_gguf,
)

EXACT: dict[str, Any] = {"deterministic": True, "dtype": "float32", "threads": 1, "kv_cache_tokens": 2048}

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(150)]


def test_a_worker_embeds_and_writes_no_text(redis_url: str, tmp_path: Path) -> None:
    family = TINY_FAMILIES["qwen3"]
    model = write_gguf(family, family.model(), tmp_path / "embedder.gguf", Pooling.LAST)
    with (
        WorkerProcess(redis_url, model, "w", tmp_path / "log", model_name="embedder", **EXACT),
        Client(redis_url, model="embedder") as client,
    ):
        one, other, again = client.embed(["a llama", "an alpaca", "a llama"], timeout_s=60).vectors
        assert one == again != other
        assert sum(number * number for number in one) == pytest.approx(1, abs=1e-5)
        assert client.embed(["a llama"]).vectors == [one]
        shop = Celery(broker=redis_url, backend=redis_url, set_as_current=False)
        sent = shop.send_task("herd.embed", args=[["a llama", "an alpaca"]], queue="herd.embedder")
        assert sent.get(timeout=60)["vectors"] == [list(one), list(other)]
        with pytest.raises(GenerationError, match=r"prompt: this model embeds texts.* writes no text"):
            client.result(client.submit(prompt="x"), wait=True).raise_for_error()


@pytest.mark.parametrize("has_folder", [False, True], ids=["file", "folder"])
def test_a_worker_ranks_as_transformers_do(redis_url: str, tmp_path: Path, *, has_folder: bool) -> None:
    family = TINY_FAMILIES["qwen3"]
    oracle = family.model()
    model = write_rank_gguf(family, oracle, tmp_path / "reranker.gguf")
    if has_folder:
        model = write_rank_folder(oracle, tmp_path / "folder", [YES, NO])
    documents = DOCUMENTS
    expected = expected_logits(oracle, QUERY, documents, [YES, NO]).tolist()
    order = sorted(range(len(documents)), key=lambda at: -expected[at])
    with (
        WorkerProcess(redis_url, model, "w", tmp_path / "log", model_name="reranker", **EXACT),
        Client(redis_url, model="reranker") as client,
        GatewayProcess(redis_url, tmp_path / "gateway.log") as gateway,
    ):
        ranks = client.rerank(QUERY, documents, timeout_s=60)
        assert [one.index for one in ranks] == order
        assert [one.logit for one in ranks] == pytest.approx([expected[at] for at in order], abs=1e-4)
        assert client.rerank(QUERY, documents, top_n=2) == ranks[:2]
        assert all(one.score == pytest.approx(1 / (1 + exp(-one.logit))) for one in ranks)
        shop = Celery(broker=redis_url, backend=redis_url, set_as_current=False)
        sent = shop.send_task("herd.rerank", args=[QUERY, documents], queue="herd.reranker")
        told = sent.get(timeout=60)["ranks"]
        assert told == [{**asdict(one), "score": one.score} for one in ranks]
        with pytest.raises(GenerationError, match=r"kind: this model ranks documents.* makes no vectors"):
            client.embed(["x"])
        told = ask(gateway, query=QUERY, documents=documents, top_n=2, return_documents=True)
        assert told["model"] == "reranker"
        assert told["usage"]["total_tokens"] > len(documents)
        for one, rank in zip(told["results"], ranks, strict=False):
            assert one == {
                "index": rank.index,
                "relevance_score": pytest.approx(rank.score),
                "document": {"text": documents[rank.index]},
            }
        assert len(told["results"]) == 2
        assert ask(gateway, query="x", documents=[{"text": "a"}, "b"])["results"]
        for wrong, words in (
            ({"query": "", "documents": ["a"]}, "query: must be a text"),
            ({"query": "x", "documents": ["a", ""]}, "documents: document 1 must be a text"),
            ({"query": "x", "documents": []}, "documents: must be a list of texts"),
            ({"query": "x", "documents": ["a"], "top_n": 0}, "top_n: must be a number"),
            ({"query": "x", "documents": ["there was a llama " * 300]}, "documents.0, with the query: "),
        ):
            assert words in ask(gateway, **wrong)["error"]["message"]


def ask(gateway: GatewayProcess, **fields: Any) -> Any:
    body = json.dumps({"model": "reranker", **fields}).encode()
    request = Request(f"{gateway.url}/v1/rerank", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)
