"""Tokens of prompts beside rows that decode, and the same jobs each alone: what laws of both compare."""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest

from llama_herd.model.attention_inputs import Scoring
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.protocol.priority import MIN_PRIORITY
from llama_herd.worker.engine import prefill, prompt_shares, slots, step_graphs
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.graph_device import CudaDevice
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.model.page_laws import check_prefixes
from tests.worker.engine_run import PREFIX, Collector, finish, sequence
from tests.worker.overlapping import Overlapping
from tests.worker.ways_to_draw import MODES, Said, job_of, said

#: All keys, the last of them, or with a scale and a cap of their own.
SCORINGS = {"all": Scoring(), "window": Scoring(window=20), "cap": Scoring(0.4, window=9, cap=2.0)}
#: Sequences of which each mode has one, or as many as it asks for.
ALL = len(MODES) + 2


def with_scoring(llama: Llama, scoring: Scoring) -> Llama:
    blocks = (replace(one, attention=replace(one.attention, scoring=scoring)) for one in llama.blocks)
    return replace(llama, blocks=tuple(blocks))


def with_budget(settings: WorkerSettings, prefill_tokens: int) -> WorkerSettings:
    return settings.model_copy(update={"prefill_tokens": prefill_tokens})


def make_forwards_small(monkeypatch: pytest.MonkeyPatch, tokens: tuple[int, ...]) -> None:
    """Let captured forwards have room for so many prompt tokens, and spans for as many as the smallest."""
    for module in (prefill, step_graphs):
        monkeypatch.setattr(module, "TOKENS", tokens)
    for module in (prefill, slots):
        monkeypatch.setattr(module, "SPAN_TOKENS", tokens[0])
    monkeypatch.setattr(prompt_shares, "MAX_SCORED_TOKENS", tokens[-1])


def card_of(model: LoadedModel) -> CudaDevice | None:
    return CudaDevice() if model.cache.device.type == "cuda" else None


def edges(model: LoadedModel, tokens: tuple[int, ...], num_alike: int = 0) -> list[Sequence]:
    """Prompts whose tokens but the last fill a forward, all but one of it, or one more; and others.

    So many tokens more stand in front of all of them, the same.
    """
    sizes = sorted({2, *(size + more for size in tokens for more in (0, 1, 2)), 2 * tokens[-1] + 6, 97})
    rng = random.Random(1)
    front = tuple(rng.choices(range(3, 250), k=num_alike))
    modes = [MODES[name] for name in ("greedy", "plain", "scored prompt", "penalties", "biases")]
    return [
        one
        for n, size in enumerate(sizes)
        for one in model.maker.sequences(
            f"job-{n}",
            job_of(
                {"temperature": 0.0, "max_tokens": 4 + n, "seed": n, **modes[n % len(modes)]},
                prompt_ids=(*front, *rng.choices(range(3, 250), k=size)),
            ),
            now_ms=0,
        )
    ]


def run_mixed(
    model: LoadedModel, settings: WorkerSettings, llama: Llama, sequences: list[Sequence]
) -> Collector:
    sink = Collector()
    one = Overlapping(model, settings, sink, llama, card_of(model))
    one.engine.submit(*sequences)
    finish(one.engine)
    assert not one.runner.graphs.complaint
    return sink


def run_alone(model: LoadedModel, llama: Llama, sequences: list[Sequence]) -> Collector:
    """One by one, each step read before the next one, with pages that lie anywhere, none of them found."""
    was, sink = model.cache, Collector()
    for one in sequences:
        cache = Cache(
            llama.config,
            was.pages.num_pages,
            was.device,
            was.storage.dtype,
            max_length=was.max_length,
            consecutive=False,
        )
        runner = ModelRunner(llama, cache)
        engine = Engine(runner, cache.prefixes, max_rows=1, prefill=PrefillBudget(512), sink=sink)
        engine.submit(one)
        finish(engine)
    return sink


def submit_beside_a_stream(engine: Engine, sequences: list[Sequence]) -> None:
    """The last one decodes when the others come: without a stream prompts are computed whole."""
    *others, last = sequences
    engine.submit(last)
    while last.num_uncached > 1:
        engine.step()
    engine.submit(*others)


def run_found(
    model: LoadedModel, settings: WorkerSettings, llama: Llama, sequences: list[Sequence]
) -> tuple[Collector, int]:
    """One stream has been computed when the others come; also how many of their tokens they find."""
    sink = Collector()
    engine = Overlapping(model, settings, sink, llama, card_of(model)).engine
    submit_beside_a_stream(engine, sequences)
    finish(engine)
    return sink, engine.prefixes.num_found_tokens


def is_mixed(engine: Engine) -> bool:
    """Whether some have a part of their prompts computed while others decode."""
    running = engine.scheduler.running
    return any(one.num_cached and one.num_uncached > 1 for one in running) and any(one.ids for one in running)


def run_crowded(
    model: LoadedModel, settings: WorkerSettings, llama: Llama, low: list[Sequence], rng: random.Random
) -> tuple[Collector, set[str]]:
    """Urgent ones come beside prompts that are computed; also who has lost its place when it had ids."""
    sink, num_urgent, lost = Collector(), 0, set[str]()
    engine = Overlapping(model, settings, sink, llama, card_of(model)).engine
    for one in low:
        one.priority = MIN_PRIORITY
    submit_beside_a_stream(engine, low)
    while engine.has_work:
        if num_urgent < 2 * len(low) and is_mixed(engine) and rng.random() < 0.5:
            prompt = PREFIX[: rng.randint(1, len(PREFIX))]
            engine.submit(sequence(model, f"urgent-{num_urgent}", prompt, max_tokens=rng.randint(1, 6)))
            num_urgent += 1
        engine.step()
        check_prefixes(engine.prefixes)
        lost.update(one.job_id for one in engine.scheduler.waiting if one.ids)
    return sink, lost


def run_killed(
    model: LoadedModel,
    settings: WorkerSettings,
    llama: Llama,
    sequences: Callable[[], list[Sequence]],
    rng: random.Random,
) -> tuple[dict[str, list[int]], int]:
    """Engines die in mixed steps, others go on from what is on record: the ids, and how many have died."""
    recorded: dict[str, list[int]] = defaultdict(list)
    ended, num_dead = set[str](), 0
    while True:
        rest = [one for one in sequences() if one.job_id not in ended]
        for one in rest:
            one.replay(recorded[one.job_id])
        sink = Collector()
        engine = Overlapping(model, settings, sink, llama, card_of(model)).engine
        submit_beside_a_stream(engine, rest)
        while engine.has_work and not (num_dead < 3 and is_mixed(engine) and rng.random() < 0.3):
            engine.step()
        for job_id, ids in sink.ids.items():
            recorded[job_id] += ids
        if not engine.has_work:
            return recorded, num_dead
        num_dead += 1
        ended.update(sink.ends)


def disturb(
    model: LoadedModel, settings: WorkerSettings, waiting: list[Sequence], rng: random.Random
) -> tuple[Said, set[tuple[str, int]]]:
    """End some sequences while their prompts are computed, by a cancel, a deadline or a lost claim.

    Others take their slots and pages. Returns what is said of all, and the names of those.
    """
    sink = Collector()
    engine = Overlapping(model, settings, sink, card=card_of(model)).engine
    doomed = list[Sequence]()
    while waiting or engine.has_work:
        while waiting and rng.random() < 0.6:
            engine.submit(waiting.pop())
        half = [one for one in engine.scheduler.running if 0 < one.num_cached < len(one.prompt_ids) - 1]
        if half and len(doomed) < 5 and rng.random() < 0.5:
            doomed.append(rng.choice(half))
            engine.abort([doomed[-1].info], rng.choice(["cancelled", "deadline", "dropped"]))
        engine.step()
        check_prefixes(engine.prefixes)
    assert engine.prefixes.pages.num_held == 0
    return said(sink), {(one.job_id, one.choice) for one in doomed}


def check_disturbed(found: Said, gone: set[tuple[str, int]], alone: Said) -> None:
    """Who ended early disturbs nobody."""
    assert gone
    assert all(found[name] == lines for name, lines in alone.items() if name not in gone)
    told = [found.get(name, [])[:1] for name in gone]
    assert all(one in ([], ["cancelled"], ["deadline"]) for one in told)


def resumed(sequences: list[Sequence], whole: dict[str, list[int]]) -> list[Sequence]:
    """Those that do not score their prompts, as they are when three of their ids are on record."""
    some = [one for one in sequences if one.params.prompt_logprobs is None and len(whole[one.job_id]) > 3]
    for one in some:
        one.replay(whole[one.job_id][:3])
    return some
