"""Several outputs of one job: one prefill, each output by noise of its own, none touched by the others."""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.cache import Cache
from llama_herd.model.pages import Pages
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.settings import Settings
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Admitted, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import PATIENCE_S, WorkerProcess
from tests.model.page_laws import check_prefixes
from tests.tiny import write_tiny_gguf

PROMPT_IDS = tuple(random.Random(1).choices(range(5, 90), k=150))
LONG, SHORT, ONE = PROMPT_IDS, PROMPT_IDS[:20], PROMPT_IDS[:1]


@pytest.fixture(scope="module")
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    return tiny_settings.model_copy(update={"deterministic": True, "slots": 8, "kv_cache_tokens": 4096})


@pytest.fixture
def fixed(wide: LoadedModel) -> LoadedModel:
    return wide


def sequences(
    model: LoadedModel, prompt_ids: tuple[int, ...], tenant: str = "default", **sampling: Any
) -> list[Sequence]:
    params = SamplingParams.model_validate({"max_tokens": 10, "ignore_eos": True, "seed": 7, **sampling})
    return model.maker.sequences(
        "job", GenerationJob(prompt_ids=prompt_ids, sampling=params, tenant=tenant), now_ms=0
    )


class Run:
    """What an engine did for some sequences: their ids, and how many tokens of prompts went through it."""

    def __init__(self, engine: Engine, submitted: list[Sequence]) -> None:
        self.ids: dict[int, list[int]] = defaultdict(list)
        self.num_prompt_tokens = 0
        for sequence in submitted:
            engine.submit(sequence)
        next_batch = engine.scheduler.next_batch

        def counted() -> Any:
            rows = next_batch()
            self.num_prompt_tokens += sum(row.num_tokens for row in rows if not row.sequence.ids)
            return rows

        engine.scheduler.next_batch = counted  # type: ignore[method-assign]
        while engine.has_work:
            engine.step()
            check_prefixes(engine.prefixes)
        assert engine.prefixes.pages.num_held == 0
        for sequence in submitted:
            self.ids[sequence.choice] = sequence.ids


def ignore(outputs: list[StepOutput]) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("prompt_ids", [LONG, SHORT, ONE], ids=["long", "short", "one token"])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_prompt_is_computed_once(
    settings: WorkerSettings, prompt_ids: tuple[int, ...], prefix_cache: bool
) -> None:
    settings = settings.model_copy(update={"prefix_cache": prefix_cache})
    model = LoadedModel.load(settings, "cpu")
    run = Run(model.engine(settings, ignore), sequences(model, prompt_ids, n=5))
    assert run.num_prompt_tokens == len(prompt_ids) + 4, "each further one computes the last token again"
    assert len({tuple(ids) for ids in run.ids.values()}) == 5


def with_table(cache: Cache) -> None:
    """Let pages lie anywhere, as on a GPU."""
    cache.pages = Pages(cache.pages.num_pages, consecutive=False)
    cache.prefixes = PrefixCache(cache.pages)


@pytest.mark.long
@pytest.mark.parametrize("prepare", [lambda cache: None, with_table], ids=["neighbours", "table"])
def test_each_output_is_what_it_would_be_alone(
    settings: WorkerSettings, fixed: LoadedModel, prepare: Callable[[Cache], None]
) -> None:
    alone = {
        one.choice: Run(fixed.engine(settings, ignore), [one]).ids[one.choice]
        for one in sequences(fixed, LONG, n=5)
    }
    prepare(fixed.cache)
    together = Run(fixed.engine(settings, ignore), sequences(fixed, LONG, n=5))
    assert together.ids == alone


def test_a_job_of_another_tenant_shares_nothing_though_its_id_is_the_same(
    settings: WorkerSettings, fixed: LoadedModel
) -> None:
    alone = Run(fixed.engine(settings, ignore), sequences(fixed, LONG[::-1], n=2))
    others = sequences(fixed, LONG, tenant="another", n=2)
    together = Run(fixed.engine(settings, ignore), [*others, *sequences(fixed, LONG[::-1], n=2)])
    assert together.ids == alone.ids


def test_the_first_output_is_the_one_of_a_job_that_has_no_others(
    settings: WorkerSettings, fixed: LoadedModel
) -> None:
    several = Run(fixed.engine(settings, ignore), sequences(fixed, SHORT, n=3))
    single = Run(fixed.engine(settings, ignore), sequences(fixed, SHORT))
    assert several.ids[0] == single.ids[0]


@pytest.mark.long
def test_the_first_output_tells_what_of_the_prompt_was_cached(settings: WorkerSettings) -> None:
    def found(prefix_cache: bool, *asked: tuple[tuple[int, ...], dict[str, Any]]) -> list[int | None]:
        changed = settings.model_copy(update={"prefix_cache": prefix_cache})
        model, starts = LoadedModel.load(changed, "cpu"), list[int | None]()
        for prompt_ids, sampling in asked:
            outputs: list[StepOutput] = []
            Run(model.engine(changed, outputs.extend), sequences(model, prompt_ids, **sampling))
            starts.append(next(one.num_cached for one in outputs if isinstance(one, Admitted)))
        return starts

    asked: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        (LONG, {}),
        (LONG, {}),
        (LONG, {"n": 3}),
        (LONG[:128], {}),  # the last token is computed, and with it its page
        (LONG[:100], {}),
        (SHORT, {}),
        (LONG, {"prompt_logprobs": 0}),
        (LONG, {"prompt_logprobs": 0, "n": 3}),
        (LONG, {"tenant": "another"}),
        (LONG[::-1], {}),
    ]
    assert found(True, *asked) == [0, 128, 128, 64, 64, 0, 0, 0, 0, 0]
    assert not any(found(False, *asked))


@pytest.mark.long
def test_a_resumed_output_tells_no_more_than_the_prompt(settings: WorkerSettings) -> None:
    model = LoadedModel.load(settings, "cpu")
    ids = Run(model.engine(settings, ignore), sequences(model, LONG[:100], max_tokens=60)).ids[0]
    [resumed] = sequences(model, LONG[:100], max_tokens=60)
    resumed.replay(ids[:40])
    outputs: list[StepOutput] = []
    Run(model.engine(settings, outputs.extend), [resumed])
    assert [one.num_cached for one in outputs if isinstance(one, Admitted)] == [100]


@pytest.mark.long
def test_more_outputs_than_rows_take_turns(settings: WorkerSettings, fixed: LoadedModel) -> None:
    expected = Run(fixed.engine(settings, ignore), sequences(fixed, LONG, n=6))
    narrow = settings.model_copy(update={"slots": 2})
    assert Run(fixed.engine(narrow, ignore), sequences(fixed, LONG, n=6)).ids == expected.ids


def test_resumed_outputs_go_on_where_each_was(settings: WorkerSettings, fixed: LoadedModel) -> None:
    expected = Run(fixed.engine(settings, ignore), sequences(fixed, LONG, n=4)).ids
    again = sequences(fixed, LONG, n=4)
    for sequence, num_recorded in zip(again, (3, 0, 10, 7), strict=True):
        sequence.replay(expected[sequence.choice][:num_recorded])
    assert again[2].finish_reason == "length"
    unfinished = [sequence for sequence in again if sequence.finish_reason is None]
    run = Run(fixed.engine(settings, ignore), unfinished)
    assert run.ids == {choice: ids for choice, ids in expected.items() if choice != 2}


def test_an_output_that_fails_leaves_its_pages_sound_for_the_others(
    settings: WorkerSettings, fixed: LoadedModel
) -> None:
    expected = Run(fixed.engine(settings, ignore), sequences(fixed, LONG, n=3)).ids
    engine = fixed.engine(settings, ignore)
    several = sequences(fixed, LONG, n=3)
    for sequence in several:
        engine.submit(sequence)
    while len(engine.scheduler.running) < 3:
        engine.step()
    engine.scheduler.remove(several[0], is_sound=False)
    while engine.has_work:
        engine.step()
        check_prefixes(engine.prefixes)
    assert [several[1].ids, several[2].ids] == [expected[1], expected[2]]


def test_a_waiting_output_needs_no_relative_that_has_gone(
    settings: WorkerSettings, fixed: LoadedModel
) -> None:
    engine = fixed.engine(settings.model_copy(update={"prefill_tokens": 1}), ignore)
    several = sequences(fixed, LONG, n=3)
    for sequence in several:
        engine.submit(sequence)
    engine.step()
    assert not several[0].has_prompt_cached, "the prompt takes several steps"
    engine.abort([several[0].info], "cancelled")
    while engine.has_work:
        engine.step()
        check_prefixes(engine.prefixes)
    assert [len(one.ids) for one in several] == [0, 10, 10]


def test_an_output_that_scores_the_prompt_computes_it_though_another_has_it(
    settings: WorkerSettings, fixed: LoadedModel
) -> None:
    engine = fixed.engine(settings, ignore)
    first, second = sequences(fixed, LONG, n=2, prompt_logprobs=0)
    engine.submit(second)
    while not second.ids:
        engine.step()
    engine.submit(first)
    while engine.has_work:
        engine.step()
        check_prefixes(engine.prefixes)
    assert len(first.prompt_scores) == len(LONG) - 1


@pytest.mark.redis
@pytest.mark.worker
@pytest.mark.timeout(120)
def test_through_a_worker_each_output_is_streamed_and_all_are_in_the_result(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", eos=False)
    sampling: SamplingFields = {"n": 3, "max_tokens": 20, "prompt_logprobs": 1, "logprobs": True, "seed": 5}
    with (
        Client(redis_server.url, model="tiny") as client,
        WorkerProcess(redis_server.url, model, "several", tmp_path / "log", slots=2),
    ):
        job_id = client.submit(prompt="a tale", sampling=sampling)
        events = list(client.stream(job_id, timeout_s=PATIENCE_S))
        app = make_app(Settings(redis_url=redis_server.url))
        stored = AsyncResult(job_id, app=app).get(timeout=PATIENCE_S)
    result = Result.from_events(events)
    assert stored == result.model_dump(mode="json")
    assert result.choices is not None
    assert [len(choice.ids) for choice in result.choices] == [20, 20, 20]
    assert len({choice.ids for choice in result.choices}) == 3
    assert all(len(choice.logprobs or ()) == 20 for choice in result.choices)
    assert result.usage is not None
    assert result.usage.completion_tokens == 60
    assert len(result.prompt_logprobs or ()) == result.usage.prompt_tokens - 1
