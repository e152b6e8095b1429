"""Vectors and ranks as every client reads them, unmodified: OpenAI's of each version, and those of others.

`make test-clients` brings all of them.
"""

import base64
import struct
from collections.abc import Iterator
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.shape.pooling import Pooling
from llama_herd.testing import FakeHerd
from llama_herd.testing.scripted_engine import NUM_DIMENSIONS, scripted_vector
from llama_herd.testing.vocabulary import Vocabulary
from tests.clients.client_process import CLIENTS, OTHERS, Case, ClientProcess, new_key
from tests.local.processes import WorkerProcess
from tests.model.tiny_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

TEXTS = ["a llama", "an alpaca"]
QUERY, DOCUMENTS = "Who spits?", ["An alpaca hums.", "Who spits? It.", "A llama spits."]
#: By the words of the query that each document has.
RANKS = [(1, 2.0), (2, 0.0), (0, -2.0)]
RANKING = {"query": QUERY, "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def herd() -> Iterator[FakeHerd]:
    with FakeHerd(["texts"]) as herd:
        yield herd


@pytest.fixture(scope="module")
def gateway(herd: FakeHerd) -> Iterator[GatewayThread]:
    with GatewayThread(herd.url) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def key(herd: FakeHerd, gateway: GatewayThread) -> str:
    return new_key(herd.url)


def ids(text: str) -> list[int]:
    return Vocabulary().encode(text)


def floats(vector: bytes | str | list[float]) -> list[float]:
    """A vector as it is told, or its numbers' bytes."""
    if isinstance(vector, list):
        return vector
    raw = base64.b64decode(vector) if isinstance(vector, str) else vector
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def vectors(texts: list[str], num_dimensions: int | None = None) -> list[list[float]]:
    return [floats(scripted_vector(ids(text), num_dimensions or NUM_DIMENSIONS)) for text in texts]


#: What may be asked, and the texts that it stands for.
INPUTS: list[tuple[Any, list[str]]] = [
    (TEXTS[0], TEXTS[:1]),
    (TEXTS, TEXTS),
    (ids(TEXTS[0]), TEXTS[:1]),
    ([ids(text) for text in TEXTS], TEXTS),
    ([f"text {number}" for number in range(300)], [f"text {number}" for number in range(300)]),
]
ENCODINGS: list[dict[str, Any]] = [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]
SIZES: list[dict[str, Any]] = [{}, {"dimensions": 8, "user": "somebody"}]


@pytest.mark.parametrize("client", CLIENTS)
def test_openais_clients_read_vectors(gateway: GatewayThread, key: str, client: str) -> None:
    asked = [
        (
            {"texts": {"model": "texts", "input": given, **encoding, **size}},
            vectors(texts, size.get("dimensions")),
        )
        for (given, texts), encoding, size in product(INPUTS, ENCODINGS, SIZES)
    ]
    found = ClientProcess(client, gateway.url, key, [case for case, _ in asked]).read()
    for (case, expected), answer, told in zip(asked, found["answers"], found["streams"], strict=True):
        for one in (answer["whole"], *told):
            assert [floats(each["embedding"]) for each in one["data"]] == expected, case
            assert [each["index"] for each in one["data"]] == [*range(len(expected))]
            assert one["usage"]["prompt_tokens"] == one["usage"]["total_tokens"] > 0


def ask_others(url: str, key: str, cases: list[Case]) -> list[Any]:
    found: Any = ClientProcess(OTHERS, url, key, cases).read()
    return list(found)


@pytest.mark.program
def test_langchain_and_litellm_read_vectors(gateway: GatewayThread, key: str) -> None:
    own = {"check_embedding_ctx_length": False}
    by = {"by": "litellm_embedding", "input": TEXTS}
    asked: list[tuple[Case, int | None]] = [
        ({"by": "langchain", "settings": own, "texts": TEXTS}, None),
        ({"by": "langchain", "settings": {**own, "dimensions": 8}, "texts": TEXTS}, 8),
        *(
            ({**by, "model": f"{provider}/texts", **encoding}, None)
            for provider in ("openai", "hosted_vllm", "litellm_proxy")
            for encoding in ({}, {"encoding_format": None}, {"encoding_format": "float"})
        ),
        ({**by, "model": "hosted_vllm/texts", "dimensions": 8}, 8),
        ({**by, "model": "openai_like/texts"}, None),
    ]
    found = ask_others(gateway.url, key, [case for case, _ in asked])
    for (case, num_dimensions), told in zip(asked, found, strict=True):
        assert told == vectors(TEXTS, num_dimensions), case


@pytest.mark.program
def test_cohere_and_litellm_read_ranks(gateway: GatewayThread, key: str) -> None:
    objects = [{"text": one} for one in DOCUMENTS]
    by = {"by": "litellm_rerank", **RANKING}
    asked: list[Case] = [
        *({"by": "cohere", "version": version, **RANKING} for version in (1, 2)),
        *(
            {**by, "model": f"{provider}/texts", **more}
            for provider in ("cohere", "jina_ai", "hosted_vllm", "litellm_proxy", "together_ai")
            for more in ({}, {"top_n": 2}, {"return_documents": False})
        ),
        {**by, "model": "jina_ai/texts", "documents": objects},
        {"by": "cohere", "version": 1, **RANKING, "top_n": 2, "return_documents": True},
    ]
    for case, told in zip(asked, ask_others(gateway.url, key, asked), strict=True):
        expected = [[index, pytest.approx(1 / (1 + exp(-logit)))] for index, logit in RANKS]
        assert told == expected[: case.get("top_n")], case


@pytest.mark.program
def test_what_is_not_done_is_refused_by_its_name(gateway: GatewayThread, key: str) -> None:
    own = {"check_embedding_ctx_length": False}
    asked: list[tuple[Case, str]] = [
        ({"by": "langchain", "settings": own, "texts": ["a", ""]}, "input: input 1 must not be empty"),
        (
            {"by": "cohere", "version": 1, **RANKING, "max_chunks_per_doc": 2},
            "max_chunks_per_doc: not supported",
        ),
        (
            {"by": "cohere", "version": 2, **RANKING, "max_tokens_per_doc": 9},
            "max_tokens_per_doc: not supported",
        ),
        ({"by": "litellm_rerank", "model": "voyage/texts", **RANKING, "top_n": 1}, "Did you mean top_n?"),
        ({"by": "litellm_rerank", "model": "cohere/none", **RANKING}, "no worker serves this model"),
    ]
    found = ask_others(gateway.url, key, [case for case, _ in asked])
    for (case, words), told in zip(asked, found, strict=True):
        assert words in told["error"], case


@pytest.mark.program
def test_langchain_without_its_setting_is_told_which_one(server: EmbeddedRedis, tmp_path: Path) -> None:
    """It sends ids of another vocabulary: of those that the model lacks it hears so."""
    family = TINY_FAMILIES["qwen3"]
    model = write_gguf(family, family.model(), tmp_path / "texts.gguf", Pooling.LAST)
    with (
        WorkerProcess(server.url, model, "w", tmp_path / "log", model_name="texts"),
        GatewayThread(server.url) as gateway,
    ):
        asked: list[Case] = [
            {"by": "langchain", "settings": settings, "texts": ["a llama"]}
            for settings in ({}, {"check_embedding_ctx_length": False})
        ]
        told, right = ask_others(gateway.url, new_key(server.url), asked)
    assert "LangChain sends texts with check_embedding_ctx_length=False" in told["error"]
    assert len(right) == 1


#: As the documentation of each of these servers shows a request.
SHAPES: dict[str, dict[str, Any]] = {
    "jina": {"top_n": 2, "return_documents": True},
    "llama.cpp": {"top_n": 2},
    "vllm": {"top_n": 2, "priority": 0, "user": "somebody"},
    "cohere": {"top_n": 2, "documents": [{"text": one} for one in DOCUMENTS], "return_documents": None},
}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_servers_shape_is_answered_at_each_of_its_paths(
    gateway: GatewayThread, shape: str, path: str
) -> None:
    body = {"model": "texts", **RANKING, **SHAPES[shape]}
    answer = gateway.ask("POST", path, body)
    assert answer.status == 200, answer.raw
    results = answer.json["results"]
    assert [one["index"] for one in results] == [1, 2]
    texts = [one.get("document", {}).get("text") for one in results]
    assert texts == ([DOCUMENTS[1], DOCUMENTS[2]] if shape == "jina" else [None, None])
