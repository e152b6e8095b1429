"""What goes wrong with one row ends its job, and nobody else is touched."""

from collections.abc import Callable, Sequence as Rows
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.model.batch import Batch
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.prefix_cache import PageCopy
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.runner import Reading, Row
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import PREFIX, Collector, finish, run, sequence, with_empty_cache


def test_a_failed_step_ends_its_batch_with_an_error_and_nobody_else(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    for index in range(6):
        engine.submit(sequence(model, f"job-{index}"))
    engine.step()
    engine.fail_running(Failure(code="model_error", message="broken"))
    assert sorted(sink.ends) == [f"job-{index}" for index in range(4)]
    finish(engine)
    assert sink.ends["job-5"] == ["length"]


def test_a_sequence_that_lacks_memory_fails_alone(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a card that is nearly full, where a forward may have 40 tokens and no more."""
    small = [sequence(model, f"small-{n}", prompt="a tale " * n) for n in range(1, 4)]
    expected = run(model, tiny_settings, small).ids
    forward = Llama.forward

    def narrow(self: Llama, batch: Batch, cache: Cache, on_layer: Callable[[], None]) -> Tensor:
        if len(batch.ids) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch, cache, on_layer)

    monkeypatch.setattr(Llama, "forward", narrow)
    small = [sequence(model, f"small-{n}", prompt="a tale " * n) for n in range(1, 4)]
    sink = run(model, tiny_settings, [sequence(model, "large", prompt="a tale " * 40), *small])
    assert sink.ends == {"large": ["error"], **{one.job_id: ["length"] for one in small}}
    assert {name: ids for name, ids in sink.ids.items() if ids} == expected
    assert set(sink.errors) == {"out_of_memory"}


def no_such_bias(broken: Sequence) -> None:
    broken.params = SamplingParams(logit_bias={10**6: 1.0})


def no_such_prompt_id(broken: Sequence) -> None:
    broken.prompt_ids = [10**6]


def no_piece_for_what_is_drawn(broken: Sequence) -> None:
    broken.detokenizer = Detokenizer([])


@pytest.mark.parametrize(
    "spoil",
    [
        no_such_bias,
        pytest.param(no_such_prompt_id, marks=pytest.mark.long),
        pytest.param(no_piece_for_what_is_drawn, marks=pytest.mark.long),
    ],
)
def test_a_row_that_raises_an_exception_fails_alone(
    tiny_settings: WorkerSettings, spoil: Callable[[Sequence], None]
) -> None:
    """What is checked before a job comes so far is left out here: in the forward, the sampler, the text."""
    settings = tiny_settings.model_copy(update={"deterministic": True})
    fixed = LoadedModel.load(settings, "cpu")
    jobs = [(f"job-{n}", "a tale " * n) for n in range(1, 5)]
    expected = run(fixed, settings, [sequence(fixed, *job) for job in jobs]).ids
    sequences = [sequence(fixed, *job) for job in jobs]
    spoil(sequences[2])
    sink = run(fixed, settings, sequences)
    assert sink.ends == {name: ["error" if name == "job-3" else "length"] for name, _ in jobs}
    assert sink.errors == ["model_error"]
    assert {name: ids for name, ids in sink.ids.items() if ids} == {
        name: ids for name, ids in expected.items() if name != "job-3"
    }


def test_a_row_whose_logits_are_no_numbers_fails_alone(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = {f"job-{n}": PREFIX + str(n) for n in range(3)}
    reference = run(model, tiny_settings, [sequence(model, *job) for job in prompts.items()]).ids
    fresh = with_empty_cache(model)
    sink = Collector()
    engine = fresh.engine(tiny_settings, sink)
    sequences = [sequence(fresh, *job) for job in prompts.items()]
    for one in sequences:
        engine.submit(one)
    while not all(len(one.ids) >= 2 for one in sequences):
        engine.step()
    first_page = sequences[1].pages[0]
    fresh.cache.storage[:, :, :, first_page] = float("nan")
    finish(engine)
    assert sink.ends["job-1"] == ["error"]
    assert sink.errors == ["numeric_error"]
    assert {name: sink.ids[name] for name in ("job-0", "job-2")} == {
        name: reference[name] for name in ("job-0", "job-2")
    }
    again = run(fresh, tiny_settings, [sequence(fresh, "again", prompts["job-1"])])
    assert again.ids["again"] == reference["job-1"]


def test_a_row_for_whose_prefix_there_is_no_memory_fails_alone(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are copied when it is admitted, before there is a step."""
    run(model, tiny_settings, [sequence(model, "first", prompt=PREFIX)])
    copy_pages = Cache.copy_pages

    def full(self: Cache, copies: tuple[PageCopy, ...]) -> None:
        if copies:
            raise torch.OutOfMemoryError("CUDA out of memory")
        copy_pages(self, copies)

    monkeypatch.setattr(Cache, "copy_pages", full)
    mates = [sequence(model, f"mate-{n}") for n in range(2)]
    sink = run(model, tiny_settings, [*mates, sequence(model, "second", prompt=PREFIX)])
    assert sink.ends == {"mate-0": ["length"], "mate-1": ["length"], "second": ["error"]}
    assert set(sink.errors) == {"out_of_memory"}


def test_outputs_that_take_over_what_was_never_copied_fail_with_it(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole prompt but its last token is kept: so all are admitted at once."""
    prompt_ids = tuple(range(5, 5 + PAGE_TOKENS + 1))

    def job(job_id: str, n: int) -> list[Sequence]:
        params = SamplingParams(max_tokens=100, n=n, seed=1, ignore_eos=True)
        return model.maker.sequences(job_id, GenerationJob(prompt_ids=prompt_ids, sampling=params), now_ms=0)

    reference = run(model, tiny_settings, job("first", 1)).ids["first"]
    copy_pages, num_copied = Cache.copy_pages, 0

    def full(self: Cache, copies: tuple[PageCopy, ...]) -> None:
        nonlocal num_copied
        num_copied += 1
        if num_copied == 1:
            self.storage[:, :, :, [copy.target for copy in copies]] = 0
            raise torch.OutOfMemoryError("CUDA out of memory")
        copy_pages(self, copies)

    monkeypatch.setattr(Cache, "copy_pages", full)
    sink = run(model, tiny_settings, job("job", 3))
    assert sink.ends == {"job": ["error"] * 3}
    assert run(model, tiny_settings, job("again", 1)).ids["again"] == reference


@pytest.mark.long
def test_a_forward_that_broke_off_and_is_repeated_in_halves_draws_the_same_ids(
    tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that has already drawn: drawing changes nothing that penalties look at."""
    settings = tiny_settings.model_copy(update={"deterministic": True})
    fixed = LoadedModel.load(settings, "cpu")
    penalties = {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.4}
    jobs: list[tuple[str, str, dict[str, Any]]] = [
        (f"job-{n}", "a tale " * n, {**penalties, "repeat_last_n": num_last, "temperature": n % 2, "seed": n})
        for n, num_last in enumerate((-1, 4, 9, 40), 1)
    ]
    expected = run(
        fixed, settings, [sequence(fixed, name, prompt, **asked) for name, prompt, asked in jobs]
    ).ids
    whole, num_failures = ModelRunner.run, 0

    def breaks_off(self: ModelRunner, rows: Rows[Row]) -> list[Reading]:
        nonlocal num_failures
        readings = whole(self, rows)
        if len(rows) > 1:
            num_failures += 1
            raise RuntimeError("broken")
        return readings

    monkeypatch.setattr(ModelRunner, "run", breaks_off)
    assert (
        run(fixed, settings, [sequence(fixed, name, prompt, **asked) for name, prompt, asked in jobs]).ids
        == expected
    )
    assert num_failures > 12
