"""Processes that do all that a memory plan counts, one for each settings, and say what they took:

python -m tests.worker.loading.largest_step '{"model": "tiny.gguf", "slots": 4}' ...

They are forked off one that has imported everything, which takes longer than all the rest.
"""

import json
import os
import sys

import psutil
import torch

import llama_herd.worker.pool  # with it Celery, as in a worker  # noqa: F401
from llama_herd.model.batch import Batch, Chunk
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.prompt_shares import MAX_SCORED_TOKENS
from llama_herd.worker.engine.sampling.row import SamplingRow
from llama_herd.worker.engine.sampling.sampler import sample
from llama_herd.worker.engine.sampling.scores import Scores
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import peak_bytes


def prefill(model: LoadedModel, num_tokens: int) -> None:
    """The last part of the longest prompt, some of it scored."""
    num_tokens = min(num_tokens, model.plan.max_length)
    num_scored = min(num_tokens, MAX_SCORED_TOKENS)
    pages = model.cache.pages.reserve("long", model.plan.max_length)
    assert pages is not None
    chunk = Chunk(pages, model.plan.max_length - num_tokens, [5] * num_tokens, num_scored)
    logits = model.llama.forward(Batch.from_chunks([chunk]), model.cache)
    Scores.from_logits(logits, torch.full((num_scored,), 5), 1).tokens()
    model.cache.pages.release("long")


def decode(model: LoadedModel, slots: int) -> None:
    """A token of each row, drawn from all that is likely."""
    params = SamplingParams(temperature=1.5, top_p=0.99, top_n_sigma=9, presence_penalty=0.1, logprobs=True)
    chunks = []
    for row in range(slots):
        pages = model.cache.pages.reserve(str(row), 1)
        assert pages is not None
        chunks.append(Chunk(pages, 0, [5], 1))
    logits = model.llama.forward(Batch.from_chunks(chunks), model.cache)
    sample(logits, [SamplingRow(params, seed) for seed in range(slots)])


def take_all(settings: WorkerSettings, unmapped_bytes: int) -> None:
    model = LoadedModel.load(settings, "cpu")
    started_bytes = resident_bytes() + unmapped_bytes
    model.cache.storage.zero_()  # as many jobs would, one after the other
    with torch.inference_mode():
        prefill(model, PrefillBudget.from_setting(settings.prefill_tokens, "cpu").alone)
        decode(model, settings.slots)
    peak = peak_bytes("self") + unmapped_bytes
    print(json.dumps({"started_bytes": started_bytes, "peak_bytes": peak}), flush=True)
    model.close()


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def main() -> None:
    for text in sys.argv[1:]:
        before_bytes = resident_bytes()
        if os.fork() == 0:
            # Pages of libraries are a fork's once it touches them; a process of its own has them by then.
            take_all(WorkerSettings.read(**json.loads(text)), before_bytes - resident_bytes())
            os._exit(0)
        _, status = os.wait()
        if status:
            sys.exit(f"{text}: it ended with status {status}")


if __name__ == "__main__":
    main()
