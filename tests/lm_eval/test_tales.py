"""lm-evaluation-harness finds by way of a gateway what it finds by transformers, of the bundled model.

Its own command with the tasks of docs/evaluate.md, unmodified: `make test-eval`.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.clients.client_process import new_key
from tests.lm_eval.harness import ROOT, Found, evaluate
from tests.local.processes import WorkerProcess
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.program, pytest.mark.redis, pytest.mark.timeout(600)]
pytest.importorskip("lm_eval", reason="no lm-eval: make test-eval")
pytest.importorskip("accelerate", reason="no accelerate, which transformers' side needs: make test-eval")

TASKS = ROOT / "examples" / "evaluate"
NUM_TALES, NUM_ENDINGS = 40, 4
LIKELIHOODS, QUESTIONS = "tale_ending,tale_text", "tale_question"
CONTEXT: dict[str, object] = {"max_length": 512}
ON_CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as transformers reads it and writes it down: weights, tokenizer, chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = tmp_path_factory.mktemp("model"), {"gguf_file": BUNDLED_MODEL.name}
    read = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL.parent, **file)
    del read.config.quantization_config  # the file's types: what was read are plain numbers
    plain = AutoModelForCausalLM.from_config(read.config)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(BUNDLED_MODEL.parent, **file).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gateway(
    server: EmbeddedRedis, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    """One with keys. It serves the file and the folder; the harness names no model when it asks for ids."""
    logs = tmp_path_factory.mktemp("logs")
    options: dict[str, Any] = {"dtype": "float32", "tokenizer_info": True}
    with (
        WorkerProcess(server.url, BUNDLED_MODEL, "file", logs / "file.log", **options),
        WorkerProcess(server.url, folder, "folder", logs / "folder.log", model_name="folder", **options),
        GatewayThread(server.url, open=False, model_name="tales") as gateway,
    ):
        yield gateway


@pytest.fixture(scope="module")
def key(server: EmbeddedRedis) -> str:
    return new_key(server.url)


def check_likelihoods(ours: dict[str, Found], theirs: dict[str, Found]) -> None:
    """They are the same, but for the order in which floats are added."""
    endings, others = (found["tale_ending"].scores for found in (ours, theirs))
    assert len(endings) == NUM_TALES * NUM_ENDINGS
    assert [score for score, _ in endings] == pytest.approx(
        [score for score, _ in others], rel=1e-4, abs=1e-3
    )
    assert [is_greedy for _, is_greedy in endings] == [is_greedy for _, is_greedy in others]
    assert ours["tale_text"].sums == pytest.approx(theirs["tale_text"].sums, rel=1e-5)


def check_outputs(ours: dict[str, Found], theirs: dict[str, Found]) -> None:
    pairs = list(zip(ours[QUESTIONS].texts, theirs[QUESTIONS].texts, strict=True))
    assert len({one for one, _ in pairs}) > len(pairs) / 2
    assert sum(one != other for one, other in pairs) <= 1  # two tokens may be as likely as each other


def test_by_ids_of_the_gateway(gateway: GatewayThread, key: str, folder: Path) -> None:
    """The harness asks for /tokenizer_info, and then takes ids and BOS from /tokenize."""
    url = f"{gateway.url}/v1/completions"
    options = {"model": "tales", "base_url": url, "auth_token": key, **CONTEXT}
    tasks = f"{LIKELIHOODS},{QUESTIONS}"
    ours = evaluate(TASKS, tasks, "local-completions", options, "--batch_size", "8", key=key)
    theirs = {"pretrained": folder, "dtype": "float32", "add_bos_token": False, **CONTEXT}
    others = evaluate(TASKS, tasks, "hf", theirs, *ON_CPU)
    check_likelihoods(ours, others)
    check_outputs(ours, others)


def commands() -> list[str]:
    """Those of docs/evaluate.md that start the harness."""
    page = (ROOT / "docs" / "evaluate.md").read_text()
    return re.findall(r"^    (lm_eval run (?:.*\\\n)*.*)$", page, re.M)


@pytest.mark.parametrize("command", commands(), ids=lambda command: re.findall(r"--model (\S+)", command)[0])
def test_the_page_s_commands_run(gateway: GatewayThread, key: str, command: str, tmp_path: Path) -> None:
    by_key = f"auth_token={key},base_url={gateway.url}"
    asked = command.replace("base_url=http://127.0.0.1:8000", by_key).replace("lm_eval", "-m lm_eval", 1)
    words = shlex.split(asked.replace("\\\n", " "))
    env = {**os.environ, "OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    limited = [sys.executable, *words, "--limit", "2"]
    done = subprocess.run(limited, capture_output=True, text=True, env=env, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "|tale_" in done.stdout


def test_by_a_tokenizer_of_transformers(gateway: GatewayThread, key: str, folder: Path) -> None:
    """With BOS before each text, and several requests at once."""
    url, with_bos = f"{gateway.url}/v1/completions", {"add_bos_token": True, **CONTEXT}
    options = {"model": "tales", "base_url": url, "tokenizer": folder, "tokenizer_backend": "huggingface"}
    ours = evaluate(
        TASKS, LIKELIHOODS, "local-completions", {**options, "num_concurrent": 4, **with_bos}, key=key
    )
    theirs = {"pretrained": folder, "dtype": "float32", **with_bos}
    check_likelihoods(ours, evaluate(TASKS, LIKELIHOODS, "hf", theirs, *ON_CPU))


def test_chats(gateway: GatewayThread, key: str, folder: Path) -> None:
    options = {"model": "folder", "base_url": f"{gateway.url}/v1/chat/completions", "num_concurrent": 4}
    ours = evaluate(TASKS, QUESTIONS, "local-chat-completions", options, "--apply_chat_template", key=key)
    theirs = {"pretrained": folder, "dtype": "float32"}
    check_outputs(ours, evaluate(TASKS, QUESTIONS, "hf", theirs, "--apply_chat_template", *ON_CPU))
