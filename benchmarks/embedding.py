"""How fast this processor makes vectors of texts: ours, llama.cpp, sentence-transformers, and the queue.

    python -m benchmarks.embedding [--presets Q8_0] [--cells "1 x 16"] [--rounds N] [--write]

A model of random weights in the shape of Qwen3-Embedding-0.6B. A cell is a request of so many texts of so
many tokens each, as ids; no two texts are alike. Each engine is a process that keeps its model loaded, and
all take turns, round by round; the largest requests come once. Then the engine and a worker behind Redis take
turns with the same texts. `make bench-peers` installs the peers before; without them there is no ratio.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from gguf import GGUFWriter
from gguf.constants import PoolingType
from rich.console import Console

from benchmarks.conditions import Processor
from benchmarks.gpu.random_model import write_random_model
from benchmarks.harness import Benchmark, in_turns, main as run
from benchmarks.report import Row, Table, number
from benchmarks.shapes import random_config
from benchmarks.speed.cells import Cell
from benchmarks.speed.child import Prompts, Room
from benchmarks.speed.contender import Contender
from benchmarks.speed.files import PRESETS
from benchmarks.speed.machine import float_type
from benchmarks.speed.our_vectors import OurVectors
from benchmarks.speed.rounds import Outcome, measure_file
from benchmarks.speed.tables import ratio
from benchmarks.vocabularies import add_byte_pairs
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.config import LlamaConfig
from llama_herd.model.shape.families import FAMILIES
from llama_herd.tasks.client.client import Client
from llama_herd.worker.settings import WorkerSettings
from tests.local.tended_worker import TendedWorker

#: Qwen3-Embedding-0.6B's, but for a vocabulary that llama.cpp reads in seconds.
CONFIG = replace(
    random_config(
        hidden_size=1_024,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        ffn_size=3_072,
        context_length=8_192,
    ),
    family=next(one for one in FAMILIES if one.name == "Qwen 3"),
    head_dim=128,
    rope_dim=128,
    rope_base=1_000_000.0,
    rms_eps=1e-6,
)

#: A request of more tokens is timed once.
MANY_TOKENS = 4_096

#: How many texts, and tokens of each.
CELLS = tuple(
    Cell(f"{num_texts} x {num_tokens}", num_texts * num_tokens, num_texts=num_texts)
    for num_texts, num_tokens in ((1, 16), (1, 128), (1, 512), (32, 16), (32, 128), (32, 512), (512, 16))
)

OURS = Contender("llama-herd", "our_vectors")
CONTENDERS = (
    OURS,
    Contender("llama.cpp", "llama_cpp_vectors", in_peers=True),
    Contender(
        "sentence-transformers",
        "sentence_vectors",
        (str(float_type()).removeprefix("torch."),),
        in_peers=True,
        loads_as_users_do=False,
    ),
)


@dataclass(frozen=True)
class Plan:
    presets: tuple[str, ...] = ("Q8_0", "F16")
    rounds: int = 3
    cells: tuple[str, ...] = tuple(cell.name for cell in CELLS)
    threads: int = len(os.sched_getaffinity(0))
    queue_texts: int = 128
    queue_tokens: int = 128  # of each


def write_embedder(folder: Path, preset: str) -> Path:
    """A GGUF file, and beside it what transformers calls the same shape."""
    path = folder / f"{preset}.gguf"
    path.with_suffix(".json").write_text(json.dumps(_hf_config(CONFIG)))
    return write_random_model(
        path, CONFIG, PRESETS[preset], torch.device("cpu"), _add_vocabulary, is_tied=True
    )


def _add_vocabulary(writer: GGUFWriter, vocab_size: int) -> None:
    add_byte_pairs(writer, vocab_size)
    writer.add_pooling_type(PoolingType.LAST)


def _hf_config(config: LlamaConfig) -> dict[str, object]:
    return {
        "model_type": config.family.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "intermediate_size": config.ffn_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_base,
    }


def measure(plan: Plan) -> Iterator[Table]:
    console = Console(stderr=True, log_path=False)
    contenders = [one for one in CONTENDERS if one.is_there]
    cells = [cell for cell in CELLS if cell.name in plan.cells]
    once = [cell for cell in cells if cell.num_tokens > MANY_TOKENS]
    turns = [cell for cell in cells if cell not in once]
    for preset in plan.presets:
        with TemporaryDirectory() as folder:
            console.log(f"{preset}: writing the file")
            path = write_embedder(Path(folder), preset)
            console.log(f"{plan.rounds} rounds of {', '.join(one.name for one in contenders)}")
            outcomes = measure_file(path, contenders, plan.threads, plan.rounds, 1, turns, once)
            yield table(preset, cells, outcomes)
            console.log("the queue")
            yield queue_table(preset, path, plan)


def table(preset: str, cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> Table:
    """Tokens a second of each contender, and ours as a multiple of each peer."""
    names = [cell.name for cell in cells]
    rows: list[Row] = [
        {preset: one.contender, **{name: one.tokens_per_s.get(name, "-") for name in names}, "note": one.note}
        for one in outcomes
    ]
    ours, *peers = rows
    for peer in peers:
        ratios = {name: ratio(ours[name], number(peer[name])) for name in names}
        known = [one for one in ratios.values() if isinstance(one, float)]
        mean = f"geometric mean {geometric_mean(known):.2f}" if known else ""
        rows.append({preset: f"× {peer[preset]}", **ratios, "note": mean})
    return Table(rows, "Tokens a second, texts x tokens of each")


def queue_table(preset: str, path: Path, plan: Plan) -> Table:
    """Tokens a second of the engine, and of a client that waits for the vectors of a worker."""
    num_texts, num_tokens = plan.queue_texts, plan.queue_tokens
    prompts = Prompts()
    engine = OurVectors(Room(path, plan.threads, num_tokens, num_texts * num_tokens))

    def texts() -> list[list[int]]:
        return [prompts.next(num_tokens) for _ in range(num_texts)]

    with embedding_worker(path, plan.threads) as client:

        def by_queue() -> float:
            wanted, started_s = texts(), perf_counter()
            client.embed(wanted)
            return perf_counter() - started_s

        ways = {"engine": lambda: engine.texts_s(texts()), "through the queue": by_queue}
        found = in_turns(ways, plan.rounds, warm=1)
    speeds = {name: [num_texts * num_tokens / one for one in seconds] for name, seconds in found.items()}
    share = median(speeds["through the queue"]) / median(speeds["engine"])
    return Table(
        [{"file": preset, **speeds, "share": share}],
        f"{num_texts} texts of {num_tokens} tokens, tokens a second",
    )


@contextmanager
def embedding_worker(path: Path, threads: int) -> Iterator[Client]:
    """A client of a worker process that embeds, with a Redis of its own."""
    with EmbeddedRedis() as server, TemporaryDirectory() as folder:
        settings = WorkerSettings.read(model=path, threads=threads, redis_url=server.url)
        with (
            TendedWorker(settings, "embed@benchmark", Path(folder) / "log"),
            Client(server.url, model=settings.served_model) as client,
        ):
            yield client


BENCHMARK = Benchmark("embedding", __doc__, Plan(), measure, machine=Processor.here().name)

if __name__ == "__main__":
    run(BENCHMARK)
