"""What W1 to W8 should come to on a card, from what the compiler made of the kernels: estimates, unmeasured.

A step is the larger of its bytes and its instructions for each product, its keys and values, and the gaps
between its kernels. What a card reaches of its ceilings is assumed, and stands here by name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from gguf import GGMLQuantizationType as GGMLType

from benchmarks.card_sizes import plan_for
from benchmarks.floors import Floors, Format
from benchmarks.gpu.device_weights import write_hollow_model
from benchmarks.report import RESULTS, Report, number
from benchmarks.shapes import random_config

LLAMA_7B = random_config(
    hidden_size=4_096, num_layers=32, num_heads=32, ffn_size=11_008, vocab_size=32_000, context_length=4_096
)
#: Rows and columns of a layer's matrices, and of the output.
LAYER = ((3 * 4_096, 4_096), (4_096, 4_096), (2 * 11_008, 4_096), (4_096, 11_008))
OUTPUT = (32_000, 4_096)
#: Bits of a weight, and the type of the output's blocks beside such layers.
TYPES = {"Q8_0": (8.5, "Q8_0"), "Q4_0": (4.5, "Q6_K"), "Q4_K": (4.5, "Q6_K"), "Q6_K": (6.5625, "Q6_K")}

#: What is reached of a card's bandwidth by weights and by keys and values, and of its arithmetic.
WEIGHT_SHARE, KV_SHARE, FLOP_SHARE = 0.92, 0.88, 0.78
#: Between two kernels of a graph; kernels of a layer, and beside the layers.
GAP_S, LAYER_KERNELS, OTHER_KERNELS = 1.4e-6, 10, 6
#: A processor's clock, and the instructions that it issues in one, of 4: in all, and of one warp.
CLOCK_HZ, PROCESSORS, ISSUED, ISSUED_OF_WARP = 1.755e9, 132, 2.4, 0.5
#: Prompt tokens of a step.
CHUNK_TOKENS = 1_024
#: Steps from a job's arrival to its first token: half of one, the one in flight, its own.
STEPS_TO_FIRST_TOKEN = 2.5
#: A start: bytes of weights a second; imports, CUDA and the kernels' check; steps that are captured, each.
LOADED_BYTES_PER_S, START_S, NUM_CAPTURES, CAPTURE_S = 3.5e9, 2.5, 32, 0.1


class Unpacking(NamedTuple):
    """A compiled product with blocks: what it takes for a weight, and of a processor."""

    instructions_a_weight: float  # of a lane
    tile_rows: int
    num_warps: int
    programs: int  # that a processor runs at once

    def busy_s(self, num_programs: int, columns: int) -> float:
        """A processor's time for its programs, which begin as others end."""
        instructions = self.tile_rows * columns * self.instructions_a_weight / 32  # of all warps of a program
        rounds, others = divmod(num_programs, self.programs)
        clocks = rounds * self.programs / self._issued(self.programs)
        clocks += others / self._issued(others) if others else 0
        return instructions * clocks / CLOCK_HZ

    def _issued(self, num_programs: int) -> float:
        """Instructions in a clock, while so many programs run at once."""
        return min(ISSUED, num_programs * self.num_warps * ISSUED_OF_WARP)


#: By the type of the blocks, and the most tokens that go into a tile.
Unpackings = Mapping[tuple[str, int], Unpacking]


@dataclass(frozen=True)
class Card:
    """A card of Hopper's by what its ceilings should be, and its memory."""

    name: str
    bytes_per_s: float
    flop_per_s: float
    num_bytes: float


#: 0.9 of the data sheets' bandwidth, and 0.8 of their arithmetic.
CARDS = (Card("H100", 3.0e12, 788e12, 80e9), Card("H200", 4.3e12, 788e12, 141e9))


@dataclass(frozen=True)
class Estimates:
    """Times of Llama 2 7B on one card, with weights of one type; seconds."""

    card: Card
    type: str  # of the layers' weights: bf16, or one of TYPES
    unpackings: Unpackings

    @property
    def dense(self) -> Floors:
        """The model as plain numbers at what the card reaches."""
        reached = self.card.bytes_per_s * WEIGHT_SHARE, self.card.flop_per_s * FLOP_SHARE
        return Floors(LLAMA_7B, Format.BF16, *reached)

    @property
    def weight_bytes(self) -> float:
        if self.type == "bf16":
            return self.dense.weight_bytes
        bits, output = TYPES[self.type]
        layers = sum(rows * columns for rows, columns in LAYER) * LLAMA_7B.num_layers
        return (layers * bits + OUTPUT[0] * OUTPUT[1] * TYPES[output][0]) / 8

    @property
    def most_rows(self) -> int:
        """Rows of 512 tokens that fit beside the weights, and no more than 256."""
        room = 0.9 * (self.card.num_bytes - self.weight_bytes - 2.5e9)
        return min(256, int(room / (512 * self.dense.kv_bytes)))

    def step_s(self, num_rows: int, context: float) -> float:
        """A step of rows that hold `context` tokens each."""
        kv_bytes = num_rows * (context + 1) * self.dense.kv_bytes
        gaps = LAYER_KERNELS * LLAMA_7B.num_layers + OTHER_KERNELS
        return self._products_s(num_rows) + kv_bytes / (self.card.bytes_per_s * KV_SHARE) + gaps * GAP_S

    def _products_s(self, num_rows: int) -> float:
        most = max(tokens for _, tokens in self.unpackings)
        if self.type == "bf16" or num_rows > most:
            nothing_held = -1  # not even the token itself
            return self.dense.decode_s(num_rows, nothing_held) + self.scratch_s
        layer_s = sum(self._product_s(self.type, num_rows, *shape) for shape in LAYER)
        return LLAMA_7B.num_layers * layer_s + self._product_s(TYPES[self.type][1], num_rows, *OUTPUT)

    def _product_s(self, type: str, num_tokens: int, num_rows: int, columns: int) -> float:
        """A fused product: reading its blocks, or unpacking them by as many warps as there are."""
        tile = min(tokens for kind, tokens in self.unpackings if kind == type and tokens >= num_tokens)
        made = self.unpackings[type, tile]
        num_programs = ceil(ceil(num_rows / made.tile_rows) / PROCESSORS)  # of the processor with the most
        read_s = num_rows * columns * TYPES[type][0] / 8 / (self.card.bytes_per_s * WEIGHT_SHARE)
        return max(read_s, made.busy_s(num_programs, columns))

    @property
    def scratch_s(self) -> float:
        """Blocks that become numbers once, for many tokens."""
        if self.type == "bf16":
            return 0.0
        return (self.weight_bytes + self.dense.weight_bytes) / self.dense.bytes_per_s

    def prefill_s(self, num_prompts: float, length: int) -> float:
        num_chunks = num_prompts * length / CHUNK_TOKENS
        compute_s = num_prompts * self.dense.prefill_flop(length) / self.dense.flop_per_s
        return compute_s + num_chunks * self.scratch_s

    def tokens_per_s(self, num_rows: int, num_in: int, num_out: int) -> float:
        """While so many rows stay busy with requests of this kind."""
        decode_s = num_out * self.step_s(num_rows, num_in + num_out / 2)
        return num_rows * num_out / (decode_s + self.prefill_s(num_rows, num_in))

    def first_token_s(self, share: float, num_in: int, num_out: int) -> float:
        """The usual wait where jobs come at this share of what the card can do."""
        jobs_per_s = share * self.tokens_per_s(self.most_rows, num_in, num_out) / num_out
        step_s = self.step_s(1, num_in)
        for _ in range(200):  # rows, and so steps, grow until as many jobs end as come
            num_rows = max(1, round(jobs_per_s * num_out * step_s))
            step_s = self.step_s(num_rows, num_in + num_out / 2) + self.prefill_s(jobs_per_s * step_s, num_in)
        return STEPS_TO_FIRST_TOKEN * step_s

    def start_s(self) -> float:
        return START_S + self.weight_bytes / LOADED_BYTES_PER_S + NUM_CAPTURES * CAPTURE_S


class Workload(NamedTuple):
    """A row of the table: a workload, its goals on an H200, and what is estimated; a figure for each type."""

    name: str
    types: tuple[str, ...]  # of weights
    unit: str
    goals: tuple[float, ...]
    by_card: list[list[float]]


def workloads(unpackings: Unpackings) -> Iterator[Workload]:
    """W1 to W8 on all cards."""

    def of(
        name: str, unit: str, goals: Mapping[str, float], estimated: Callable[[Estimates], float]
    ) -> Workload:
        by_card = [[estimated(Estimates(card, type, unpackings)) for type in goals] for card in CARDS]
        return Workload(name, tuple(goals), unit, tuple(goals.values()), by_card)

    def beyond(one: Estimates) -> float:
        return 100 * max(0.0, 1e-6 * _host_us("256 rows, us") / one.step_s(one.most_rows, 384) - 1)

    yield of("W1: 1 row", "ms a token", {"bf16": 4.0}, lambda one: 1_000 * one.step_s(1, 512))
    blocks = {"Q8_0": 2.5, "Q4_0": 1.7, "Q4_K": 1.7}
    yield of("W1q: 1 row", "ms a token", blocks, lambda one: 1_000 * one.step_s(1, 512))
    steps = {"bf16": 9.1, "Q8_0": 9.1, "Q4_0": 9.1}
    yield of("W2: 64 rows", "ms a token", steps, lambda one: 1_000 * one.step_s(64, 512))
    rates = {"bf16": 8_700, "Q4_0": 8_700}
    name = "W3: 1,024 requests of 256 + 256"
    yield of(name, "tokens/s", rates, lambda one: one.tokens_per_s(one.most_rows, 256, 256))
    name = "W4: first token of 256 + 128 at 80 % load"
    yield of(name, "ms, p50", {"bf16": 60}, lambda one: 1_000 * one.first_token_s(0.8, 256, 128))
    prompts = {"bf16": 87, "Q4_0": 94}
    yield of("W5: prompts of 8 x 512", "ms", prompts, lambda one: 1_000 * one.prefill_s(8, 512))
    yield of("W6: start", "s", {"Q8_0": 6, "bf16": 8}, lambda one: one.start_s())
    yield of("W7: memory beside weights and cache", "GB, planned", {"bf16": 2.0}, planned_gb)
    yield of("W8: W3's time beyond the card's", "%", {"bf16": 3}, beyond)


def planned_gb(one: Estimates) -> float:
    """The memory that a worker of the bfloat16 model plans for its steps on a card."""
    with TemporaryDirectory() as folder:
        model = write_hollow_model(Path(folder) / "model.gguf", LLAMA_7B, GGMLType.BF16)
        parts = plan_for(model, one.card.num_bytes / 1e9).parts
    return sum(size for part, size in parts.items() if part not in ("weights", "KV cache", "CUDA")) / 1e9


def _host_us(column: str) -> float:
    """The host's part of a greedy step that overlaps the one before it, as it was measured."""
    (table,) = Report.read(RESULTS / "host_steps.json").tables
    found = next(row for row in table.rows if (row["steps"], row["draw"]) == ("overlapping", "greedy"))
    return number(found[column])
