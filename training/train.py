"""Trains the bundled model: `python -m training.train`. About half an hour on two CPU cores with bfloat16."""

import argparse
import itertools
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import start_processes
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

from training import bundle
from training.corpus import NUM_DOCUMENTS, SEED, training_documents
from training.vocabulary import SIZE as VOCABULARY_SIZE, Example, Vocabulary

NUM_PROCESSES = 2  # of one thread each: faster than two threads, and less hurt by other load
BATCH_TOKENS = 1024  # of one process
VOCABULARY_DOCUMENTS = 5000
POOL_DOCUMENTS = 1024  # documents are sorted by length within a pool, so that a batch needs little padding
PEAK_LEARNING_RATE = 4e-3
WARMUP_STEPS = 50
NOT_LEARNED = -100

SHAPE = LlamaConfig(
    vocab_size=VOCABULARY_SIZE,
    hidden_size=256,
    num_hidden_layers=4,
    intermediate_size=640,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    initializer_range=0.06,  # about 1 / sqrt(hidden_size)
    use_cache=False,
    attn_implementation="eager",  # on a CPU with bfloat16 it trains half as fast again as "sdpa"
)


class Curriculum(NamedTuple):
    """What is learned, in order."""

    vocabulary: Vocabulary
    batches: list[list[Example]]


def prepare(num_documents: int) -> Curriculum:
    """Write the documents, train the vocabulary on the first of them, and lay all out in batches."""
    documents = list(itertools.islice(training_documents(SEED), num_documents))
    vocabulary = Vocabulary.train(document.text for document in documents[:VOCABULARY_DOCUMENTS])
    examples = [vocabulary.encode(document) for document in documents]
    rng = random.Random(SEED)
    pools = (examples[at : at + POOL_DOCUMENTS] for at in range(0, len(examples), POOL_DOCUMENTS))
    batches = [batch for pool in pools for batch in batches_of(pool, rng)]
    num_tokens = sum(len(example.ids) for example in examples)
    print(f"{len(examples)} documents, {num_tokens} tokens, {len(batches)} batches", flush=True)
    return Curriculum(vocabulary, batches)


def batches_of(pool: Sequence[Example], rng: random.Random) -> list[list[Example]]:
    """Batches of at most BATCH_TOKENS with padding, of examples of like length, in random order."""
    batches: list[list[Example]] = [[]]
    for example in sorted(pool, key=lambda example: len(example.ids)):
        if (len(batches[-1]) + 1) * len(example.ids) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(example)
    rng.shuffle(batches)
    return batches


def loss_of(model: Module, batch: Sequence[Example]) -> Tensor:
    """Mean cross-entropy of the tokens to learn, in nats. Padding stands at the right: it needs no mask."""
    ids = _padded([example.ids for example in batch], 0)
    targets = _padded([_targets(example) for example in batch], NOT_LEARNED)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids).logits
    return cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets[:, 1:].flatten(), ignore_index=NOT_LEARNED
    )


def _targets(example: Example) -> list[int]:
    return [NOT_LEARNED] * example.learn_from + example.ids[example.learn_from :]


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def learning_rate(step: int, num_steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return PEAK_LEARNING_RATE * warmup * 0.5 * (1 + math.cos(math.pi * step / num_steps))


def optimizers_of(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices within the layers, AdamW for the embedding and the norms.

    Source: https://kellerjordan.github.io/posts/muon, scaled as in https://arxiv.org/abs/2502.16982
    """
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    return [
        torch.optim.Muon(matrices, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.1, fused=True),
    ]


def train(model: LlamaForCausalLM, batches: Sequence[Sequence[Example]], rank: int) -> None:
    """Take this process's share of each step's batches; prints the loss now and then."""
    joined = DistributedDataParallel(model)
    optimizers = optimizers_of(model)
    num_steps = len(batches) // NUM_PROCESSES
    started = time.monotonic()
    for step in range(num_steps):
        loss = loss_of(joined, batches[step * NUM_PROCESSES + rank])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = learning_rate(step, num_steps)
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0 and (step % 20 == 0 or step == num_steps - 1):
            minutes = (time.monotonic() - started) / 60
            print(f"step {step + 1} of {num_steps}  loss {loss.item():.3f}  {minutes:.1f} min", flush=True)


def run_process(rank: int, curriculum: Curriculum, output: Path, store: Path) -> None:
    """One of the training processes, which meet through the file `store`; the first one writes the model."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    distributed.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=NUM_PROCESSES)
    model = LlamaForCausalLM(SHAPE)
    train(model, curriculum.batches, rank)
    distributed.barrier()
    distributed.destroy_process_group()
    if rank == 0:
        bundle.write(output, model, curriculum.vocabulary.pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=NUM_DOCUMENTS, help="to train on, each once")
    parser.add_argument("--output", type=Path, default=bundle.PATH)
    arguments = parser.parse_args()
    curriculum = prepare(arguments.documents)
    with tempfile.TemporaryDirectory() as folder:
        shared = (curriculum, arguments.output, Path(folder) / "store")
        start_processes(run_process, shared, NUM_PROCESSES, start_method="fork")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
