"""The very requests of lm-evaluation-harness, and what it makes of the answers, as by transformers.

The bodies are those of its `local-completions`, `local-chat-completions` and remote tokenizer (0.4.13). The
harness itself runs in `tests/lm_eval`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from benchmarks.peer import load_peer
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.clients.client_process import new_key
from tests.local.processes import WorkerProcess
from tests.reply import Reply
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

SEED = 1234
CONTEXT = "Once upon a time, a little llama lived on a green hill. One morning,"
ENDINGS = (" a storm came.", " Pip found a key under the bed.", " the")
#: The log-likelihood of each id after `num_context` of them, and whether each is the likeliest.
Score = tuple[float, bool]


class Harness:
    """What it asks a gateway, by its own words."""

    def __init__(self, gateway: GatewayThread, key: str) -> None:
        self._gateway = gateway
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def ask(self, method: str, path: str, body: object = None) -> Reply:
        return self._gateway.ask(method, path, body, self._headers)

    @property
    def info(self) -> dict[str, Any]:
        found = self.ask("GET", "/tokenizer_info")
        assert found.status == 200, found.raw
        info: dict[str, Any] = found.json
        return info

    def encode(self, text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False}
        ids: list[int] = self.ask("POST", "/tokenize", body).json["tokens"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.ask("POST", "/detokenize", {"tokens": ids}).json["prompt"]
        return text

    @property
    def prefix_id(self) -> int:
        """The token before a text that nothing stands before."""
        return self.encode(self.info["bos_token"] or self.info["eos_token"])[0]

    def scores(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[Score]:
        """The log-likelihood of the second ids of each row after the first."""
        body = {
            "model": "tales",
            "prompt": [context + continuation for context, continuation in rows],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": SEED,
            "echo": True,
        }
        found = self.ask("POST", "/v1/completions", body)
        assert found.status == 200, found.raw
        choices = zip(sorted(found.json["choices"], key=lambda one: int(one["index"])), rows, strict=True)
        return [_score(choice["logprobs"], len(context)) for choice, (context, _) in choices]

    def outputs(self, prompts: list[Any], until: list[str]) -> list[str]:
        body = {
            "prompt": prompts,
            "model": "tales",
            "max_tokens": 40,
            "temperature": 0,
            "stop": [*until, self.info["eos_token"]],
            "seed": SEED,
        }
        found = self.ask("POST", "/v1/completions", body)
        assert found.status == 200, found.raw
        return [choice["text"] for choice in sorted(found.json["choices"], key=lambda one: int(one["index"]))]

    def answer(self, messages: list[dict[str, str]], until: list[str]) -> str:
        body = {
            "messages": messages,
            "model": "tales",
            "max_tokens": 40,
            "temperature": 0,
            "stop": until[:4],
            "seed": SEED,
        }
        found = self.ask("POST", "/v1/chat/completions", body)
        assert found.status == 200, found.raw
        text: str = found.json["choices"][0]["message"]["content"]
        return text


def _score(logprobs: dict[str, Any], num_context: int) -> Score:
    own = logprobs["token_logprobs"][num_context:-1]
    likeliest = [max(top.values()) for top in logprobs["top_logprobs"][num_context:-1]]
    return sum(own), own == likeliest


@pytest.fixture(scope="module")
def gateway(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    worker = WorkerProcess(
        server.url, BUNDLED_MODEL, "evaluated", log, dtype="float32", slots=8, tokenizer_info=True
    )
    with worker, GatewayThread(server.url, open=False) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def harness(gateway: GatewayThread, server: EmbeddedRedis) -> Harness:
    return Harness(gateway, new_key(server.url))


@pytest.fixture(scope="module")
def transformers() -> Callable[[list[int], list[int]], Score]:
    """The same score by transformers, which reads the same file."""
    import torch

    with GGUFModel.open(BUNDLED_MODEL) as file:
        model = load_peer(file)

    def score(context: list[int], continuation: list[int]) -> Score:
        ids = torch.tensor([context + continuation])
        with torch.inference_mode():
            rows = model(ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
        own = rows.gather(1, ids[0, len(context) :, None])[:, 0]
        return float(own.sum()), bool((rows.argmax(-1) == ids[0, len(context) :]).all())

    return score


def test_ids_by_the_gateway_are_transformers_own(harness: Harness) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(BUNDLED_MODEL.parent, gguf_file=BUNDLED_MODEL.name)
    info = harness.info
    assert (info["bos_token"], info["eos_token"]) == (theirs.bos_token, theirs.eos_token)
    assert harness.prefix_id == theirs.bos_token_id
    assert harness.encode(info["eos_token"]) == [theirs.eos_token_id]
    for text in (CONTEXT, *(CONTEXT + ending for ending in ENDINGS)):
        assert harness.encode(text) == theirs(text, add_special_tokens=False).input_ids
        assert harness.decode(harness.encode(text)) == text


def test_a_choice_has_transformers_likelihoods(
    harness: Harness, transformers: Callable[[list[int], list[int]], Score]
) -> None:
    context = harness.encode(CONTEXT)
    rows = [(context, harness.encode(CONTEXT + ending)[len(context) :]) for ending in ENDINGS]
    _check_alike(harness.scores(rows), [transformers(*row) for row in rows])


def test_a_whole_text_has_transformers_likelihood(
    harness: Harness, transformers: Callable[[list[int], list[int]], Score]
) -> None:
    """A rolling one begins after BOS, and may fill the context but for the token that is asked for."""
    ids = harness.encode(CONTEXT * 60)
    rows = [([harness.prefix_id], ids[:num]) for num in (1, 60, harness.info["model_max_length"] - 2)]
    _check_alike(harness.scores(rows), [transformers(*row) for row in rows])


def test_a_greedy_continuation_is_known_as_one(
    harness: Harness, transformers: Callable[[list[int], list[int]], Score]
) -> None:
    context = harness.encode(CONTEXT)
    (text,) = harness.outputs([context], ["!"])
    continuation = harness.encode(CONTEXT + text)[len(context) :][:-1]
    rows = [(context, continuation), (context, [*continuation, harness.prefix_id])]
    found = harness.scores(rows)
    assert [is_greedy for _, is_greedy in found] == [True, False]
    _check_alike(found, [transformers(*row) for row in rows])


def test_outputs_end_where_the_harness_says(harness: Harness) -> None:
    prompts = [harness.encode(CONTEXT), harness.encode("Once upon a time")]
    texts = harness.outputs(prompts, ["\n\n", "."])
    assert all(text and "." not in text for text in texts)
    assert harness.outputs(prompts, []) != texts
    messages = [{"role": "user", "content": "Count by tens."}]
    assert ("," in harness.answer(messages, []), "," in harness.answer(messages, [","])) == (True, False)


def test_without_a_setting_the_harness_goes_elsewhere_for_ids(
    server: EmbeddedRedis, harness: Harness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two models are served and none is named; or a worker does not show its tokenizer."""
    log = tmp_path_factory.mktemp("log") / "silent.log"
    info = harness.info
    with (
        WorkerProcess(server.url, BUNDLED_MODEL, "silent", log, model_name="silent", slots=2),
        GatewayThread(server.url) as unnamed,
        GatewayThread(server.url, model_name="silent") as silent,
    ):
        found = unnamed.ask("GET", "/tokenizer_info")
        assert (found.status, found.error["param"]) == (400, "model")
        assert "silent, tales" in found.error["message"]
        assert unnamed.ask("GET", "/tokenizer_info?model=tales").json == info
        refused = silent.ask("GET", "/tokenizer_info")
        assert (refused.status, refused.error["code"]) == (400, "invalid_job")
        assert "HERD_TOKENIZER_INFO=true" in refused.error["message"]
        assert silent.ask("GET", "/tokenizer_info?model=none").status == 404
        assert silent.ask("GET", "/tokenizer_info?model=a/b").status == 400


def _check_alike(ours: list[Score], theirs: list[Score]) -> None:
    assert [score for score, _ in ours] == pytest.approx([score for score, _ in theirs], rel=1e-4, abs=1e-3)
    assert [is_greedy for _, is_greedy in ours] == [is_greedy for _, is_greedy in theirs]
