"""LlamaIndex and LiteLLM, as people use them, against a gateway. Skipped where they are not installed."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.local.processes import WorkerProcess
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.slow, pytest.mark.timeout(180)]

TALE = "Once upon a time"
TURN = {"role": "user", "content": "Tell a tale."}


@pytest.fixture(scope="module")
def url(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with WorkerProcess(server.url, BUNDLED_MODEL, "clients", log), GatewayThread(server.url) as gateway:
        yield f"{gateway.url}/v1"


@pytest.fixture(scope="module")
def key(server: EmbeddedRedis) -> str:
    with Redis.from_url(server.url) as redis:
        return run_dialogue(redis, create_key("clients", "default", KeyRole.PRODUCER))


@pytest.fixture
def llama_index(url: str, key: str) -> Any:
    module = pytest.importorskip("llama_index.llms.openai_like")
    options = {"temperature": 0.0, "max_tokens": 16, "context_window": 512, "max_retries": 0}
    return lambda **own: module.OpenAILike(model="tales", api_base=url, api_key=key, **options, **own)


def test_llama_index_completes_and_streams(llama_index: Any) -> None:
    model = llama_index()
    whole = model.complete(TALE)
    assert whole.text
    assert "".join(piece.delta for piece in model.stream_complete(TALE)) == whole.text


def test_llama_index_chats_and_streams(llama_index: Any) -> None:
    message = pytest.importorskip("llama_index.core.llms").ChatMessage
    model, turns = llama_index(is_chat_model=True), [message(**TURN)]
    whole = model.chat(turns).message.content
    assert whole
    assert "".join(piece.delta or "" for piece in model.stream_chat(turns)) == whole


@pytest.fixture
def litellm(url: str, key: str) -> Any:
    module = pytest.importorskip("litellm")
    module.suppress_debug_info = True
    options = {"api_base": url, "api_key": key, "temperature": 0, "max_tokens": 16, "num_retries": 0}
    return lambda ask, model, **own: getattr(module, ask)(model=model, **options, **own)


def test_litellm_completes_one_prompt_and_several(litellm: Any) -> None:
    one = litellm("text_completion", "text-completion-openai/tales", prompt=TALE)
    several = litellm("text_completion", "text-completion-openai/tales", prompt=[TALE, "A llama", TALE])
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.choices[0].text == several.choices[2].text == one.choices[0].text
    pieces = litellm("text_completion", "text-completion-openai/tales", prompt=TALE, stream=True)
    assert "".join(piece.choices[0].text or "" for piece in pieces) == one.choices[0].text


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_chats_and_streams(litellm: Any, provider: str) -> None:
    whole = litellm("completion", f"{provider}/tales", messages=[TURN])
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens == 16
    pieces = litellm("completion", f"{provider}/tales", messages=[TURN], stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
