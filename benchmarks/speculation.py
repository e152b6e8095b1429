"""Would prompt lookup pay? What more tokens a row cost in a forward, and how many drafted tokens come true.

    python -m benchmarks.speculation [--write]

Nothing of it is built: see prompt_lookup.py for what is replayed. Forwards run on one thread in float32,
every token with logits and an argmax. The predicted speed-up is that of the forward alone: lookup, draws
and bookkeeping come on top.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.prompt_lookup import SUFFIXES, Replay, Text
from benchmarks.shapes import BUNDLED, PLAIN_IDS, RANDOM_134M, RANDOM_374M, Shape
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import pages_for
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from training.corpus import SEED, held_out_documents

DRAFTS = (0, 1, 2, 3, 4, 7)  # tokens; a forward computes one more
LIMITS = (2, 4, 7)  # longest drafts of the replays


@dataclass(frozen=True)
class Plan:
    shapes: tuple[Shape, ...] = (BUNDLED, RANDOM_134M, RANDOM_374M)
    rows: tuple[int, ...] = (1, 2, 4, 8)
    past_tokens: int = 256
    repeats: int = 15
    num_texts: int = 64
    max_tokens: int = 160


class Costs:
    """The time of forwards of one shape, by rows and drafted tokens."""

    def __init__(self, shape: Shape, plan: Plan, folder: Path) -> None:
        """Median of rounds, each of which goes through all sizes in turn."""
        with GGUFModel.open(shape.file(folder)) as file:
            llama = Llama.load(file)
        num_tokens = plan.past_tokens + max(DRAFTS) + 1
        cache = Cache(llama.config, max(plan.rows) * pages_for(num_tokens))
        pages = [cache.pages.reserve(f"row-{row}", num_tokens) or () for row in range(max(plan.rows))]
        sizes = list(product(plan.rows, DRAFTS))
        rounds = [
            [_forward_ms(llama, cache, pages[:rows], plan.past_tokens, drafted) for rows, drafted in sizes]
            for _ in range(plan.repeats)
        ]
        self.ms: dict[tuple[int, int], float] = dict(
            zip(sizes, map(median, zip(*rounds, strict=True)), strict=True)
        )

    def ratio(self, num_rows: int, num_drafted: int) -> float:
        """Against a forward of one token a row; between the drafts that were timed, on a straight line."""
        below = max(one for one in DRAFTS if one <= num_drafted)
        above = min(one for one in DRAFTS if one >= num_drafted)
        low_ms, high_ms = self.ms[num_rows, below], self.ms[num_rows, above]
        between = (num_drafted - below) / max(1, above - below)
        return (low_ms + (high_ms - low_ms) * between) / self.ms[num_rows, 0]

    def speed_up(self, replay: Replay, num_rows: int) -> float:
        """Tokens a forward over what it costs, where all rows draft alike."""
        spent = sum(count * self.ratio(num_rows, drafted) for drafted, count in replay.by_drafted.items())
        return replay.tokens_per_pass * len(replay.passes) / spent


def _forward_ms(
    llama: Llama, cache: Cache, pages: list[tuple[int, ...]], past_tokens: int, num_drafted: int
) -> float:
    ids = PLAIN_IDS[: num_drafted + 1]
    batch = Batch.of([Chunk(own, past_tokens, ids, num_logits=len(ids)) for own in pages])
    started_s = perf_counter()
    llama.forward(batch, cache).argmax(dim=-1)
    return 1000 * (perf_counter() - started_s)


def texts_by_kind(plan: Plan) -> Iterator[tuple[str, list[Text]]]:
    """What is replayed: the bundled model's own texts, and copies of random ids as the best case."""
    documents = held_out_documents(SEED, plan.num_texts)
    prompts = [one.prompt for one in documents]
    again = [f"{one.text}\n\n{' '.join(one.text.split()[:6])}" for one in documents]
    for temperature in (0.0, 0.8):
        yield f"held-out prompts, temperature {temperature:g}", _generate(prompts, plan, temperature)
        yield f"the text in the prompt, temperature {temperature:g}", _generate(again, plan, temperature)
    yield "random ids, copied: the best case", list(_copies(plan))


def _generate(prompts: list[str], plan: Plan, temperature: float) -> list[Text]:
    settings, ended = WorkerSettings(slots=8, threads=1), list[Sequence]()
    model = LoadedModel.load(settings, "cpu")

    def keep(outputs: list[StepOutput]) -> None:
        ended.extend(output.sequence for output in outputs if output.finish_reason)

    engine = model.engine(settings, keep)
    sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=temperature)
    for number, prompt in enumerate(prompts):
        job = GenerationJob(prompt=prompt, sampling=sampling)
        engine.submit(model.sequences(f"text-{number}", job, now_ms=0)[0])
    while engine.has_work:
        engine.step()
    return [Text((*one.prompt_ids, *one.ids), len(one.prompt_ids)) for one in ended]


def _copies(plan: Plan) -> Iterator[Text]:
    random = Random(SEED)
    for _ in range(plan.num_texts):
        ids = tuple(random.choices(PLAIN_IDS, k=plan.max_tokens))
        yield Text(ids + ids, num_prompt=plan.max_tokens + max(SUFFIXES))


def measure(plan: Plan) -> Report:
    torch.set_num_threads(1)
    replays = {
        kind: {limit: Replay.of(texts, limit) for limit in LIMITS} for kind, texts in texts_by_kind(plan)
    }
    with TemporaryDirectory() as folder:
        costs = {shape.name: Costs(shape, plan, Path(folder)) for shape in plan.shapes}
    return {
        "benchmark": "speculation",
        "plan": {**asdict(plan), "shapes": list(costs)},
        "conditions": conditions(),
        "costs": [
            {"model": name, "rows": rows, "ms": round(cost.ms[rows, 0], 2)}
            | {f"+{drafted}": round(cost.ratio(rows, drafted), 2) for drafted in DRAFTS[1:]}
            for (name, cost), rows in product(costs.items(), plan.rows)
        ],
        "replays": [
            {"text": kind, "draft": limit}
            | {
                "tokens a forward": round(replay.tokens_per_pass, 2),
                "true share": round(replay.true_share, 2),
            }
            | {
                f"{name}, {rows} rows": round(cost.speed_up(replay, rows), 2)
                for (name, cost), rows in product(costs.items(), (plan.rows[0], plan.rows[-1]))
            }
            for kind, by_limit in replays.items()
            for limit, replay in by_limit.items()
        ],
    }


def tables(report: Report) -> Iterator[Table]:
    titles = {
        "costs": "A forward of one token a row in ms, and how much longer it takes with drafted ones",
        "replays": "Prompt lookup replayed: what comes true, and the speed-up that would follow",
    }
    for name, title in titles.items():
        yield Table(list(report[name][0]), [list(row.values()) for row in report[name]], title)


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
