"""Asks for vectors and ranks by LangChain, LiteLLM and Cohere's client: a program that knows nothing of ours.

    python tests/clients/others.py URL KEY < cases.json

A case is {"by": …} and what that is asked. Written is what each comes to: vectors, ranks as pairs of index
and score, or {"error": …}.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: What a case comes to.
Told = Any


def langchain(url: str, key: str, settings: dict[str, Any], texts: list[str]) -> Told:
    own = {"model": "texts", "base_url": url, "api_key": key, "max_retries": 0, **settings}
    embeddings = import_module("langchain_openai").OpenAIEmbeddings(**own)
    vectors = embeddings.embed_documents(texts)
    assert embeddings.embed_query(texts[0]) == vectors[0]
    return vectors


def litellm_embedding(url: str, key: str, **asked: Any) -> Told:
    told = import_module("litellm").embedding(api_base=url, api_key=key, **asked)
    return [one["embedding"] for one in told.data]


def litellm_rerank(url: str, key: str, **asked: Any) -> Told:
    told = import_module("litellm").rerank(api_base=url.removesuffix("/v1"), api_key=key, **asked)
    return [(one["index"], one["relevance_score"]) for one in told.results]


def cohere(url: str, key: str, version: int, **asked: Any) -> Told:
    own = import_module("cohere")
    kind = own.Client if version == 1 else own.ClientV2
    client = kind(api_key=key, base_url=url.removesuffix("/v1"))
    told = client.rerank(model="texts", **asked)
    return [(one.index, one.relevance_score) for one in told.results]


ASKED: dict[str, Callable[..., Told]] = {
    one.__name__: one for one in (langchain, litellm_embedding, litellm_rerank, cohere)
}


def ask(url: str, key: str, by: str, **asked: Any) -> Told:
    try:
        return ASKED[by](url, key, **asked)
    except Exception as error:  # of any of these packages
        return {"error": f"{type(error).__name__}: {error}"}


def stay_here() -> None:
    """Have none of them ask the internet: LangChain's vocabulary lies in LiteLLM's package."""
    found = find_spec("litellm")
    assert found is not None
    assert found.origin is not None
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(found.origin).parent / "litellm_core_utils" / "tokenizers")
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


if __name__ == "__main__":
    stay_here()
    told, sys.stdout = sys.stdout, sys.stderr  # LiteLLM prints
    print(json.dumps([ask(*sys.argv[1:], **case) for case in json.load(sys.stdin)]), file=told)
