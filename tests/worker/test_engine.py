"""Laws of the engine: a sequence's ids do not depend on who runs beside it, or on what happened before."""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.batch import Batch
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.events import Failure
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine import Engine
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.output import Output
from llama_herd.worker.scheduler import Row
from llama_herd.worker.sequence import Sequence
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.writer import Writer
from tests.tiny import write_tiny_gguf


class Collector(list[Output]):
    """A sink that can be asked about one job."""

    def __call__(self, outputs: list[Output]) -> None:
        self.extend(outputs)

    @property
    def ids(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for output in self:
            found[output.sequence.job_id] += output.ids
        return found

    @property
    def ends(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for output in self:
            if output.finish_reason:
                found[output.sequence.job_id].append(output.finish_reason)
        return found


def sequence(model: LoadedModel, job_id: str, prompt: str = "a tale", **sampling: Any) -> Sequence:
    params = SamplingParams.model_validate({"temperature": 0.0, "max_tokens": 12, **sampling})
    return model.sequences(job_id, GenerationJob(prompt=prompt, sampling=params), now_ms=0)[0]


def run(model: LoadedModel, settings: WorkerSettings, sequences: list[Sequence]) -> Collector:
    sink = Collector()
    engine = model.engine(settings, sink)
    for one in sequences:
        engine.submit(one)
    finish(engine)
    return sink


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.cache.prefixes.check()
    assert engine.cache.pages.num_held == 0


def mixed_jobs(model: LoadedModel, seed: int) -> list[Sequence]:
    rng = random.Random(seed)
    return [
        sequence(
            model,
            f"job-{index}",
            prompt="once upon a time " * rng.randint(1, 6),
            max_tokens=rng.randint(1, 30),
            temperature=rng.choice([0.0, 0.9]),
            top_k=rng.choice([0, 20]),
        )
        for index in range(10)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_gives_each_job_what_it_gets_alone(
    model: LoadedModel, tiny_settings: WorkerSettings, seed: int
) -> None:
    together = run(model, tiny_settings, mixed_jobs(model, seed)).ids
    for one in mixed_jobs(model, seed):
        assert run(model, tiny_settings, [one]).ids[one.job_id] == together[one.job_id]


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"min_p": 0.05, "top_k": 60, "top_p": 0.95},
        {"repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.3, "repeat_last_n": 9},
        {"logit_bias": {40: 4.0, 41: 4.0}, "stop": ["(", ")"], "min_tokens": 12},
    ],
)
def test_a_resumed_sequence_goes_on_as_if_nothing_had_happened(
    model: LoadedModel, tiny_settings: WorkerSettings, sampling: dict[str, Any]
) -> None:
    sampling = {"temperature": 0.8, "max_tokens": 20, **sampling}
    whole = run(model, tiny_settings, [sequence(model, "job", **sampling)])
    for num_recorded in (1, 7, len(whole.ids["job"]) - 1):
        resumed = sequence(model, "job", **sampling)
        text = resumed.replay(whole.ids["job"][:num_recorded])
        rest = run(model, tiny_settings, [resumed])
        assert rest.ids["job"] == whole.ids["job"][num_recorded:]
        assert text + "".join(o.text for o in rest) == "".join(o.text for o in whole)


def test_every_sequence_starts_once_and_ends_once(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    sink = run(model, tiny_settings, mixed_jobs(model, 5))
    assert {job_id: len(ends) for job_id, ends in sink.ends.items()} == {f"job-{i}": 1 for i in range(10)}
    assert sum(output.has_started for output in sink) == 10


def test_sequences_join_and_leave_at_any_step(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    engine.submit(sequence(model, "long", max_tokens=40))
    for _ in range(5):
        engine.step()
    engine.submit(sequence(model, "short", max_tokens=3))
    finish(engine)
    order = [output.sequence.job_id for output in sink if output.finish_reason]
    assert order == ["short", "long"]
    assert sink.ids["long"] == run(model, tiny_settings, [sequence(model, "long", max_tokens=40)]).ids["long"]


def test_a_cancelled_sequence_ends_at_the_next_step_and_frees_its_pages(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    doomed = sequence(model, "doomed", max_tokens=100)
    engine.submit(doomed)
    engine.step()
    doomed.abort = "cancelled"
    engine.step()
    assert sink.ends["doomed"] == ["cancelled"]
    assert len(sink.ids["doomed"]) == 1
    assert engine.cache.pages.num_held == 0


def test_an_overdue_sequence_is_not_computed(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    late = sequence(model, "late")
    late.deadline_s = 0.0
    sink = run(model, tiny_settings, [late])
    assert sink.ends["late"] == ["deadline"]
    assert sink.ids["late"] == []


def test_a_dropped_sequence_says_nothing(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    dropped = sequence(model, "dropped")
    dropped.abort = "dropped"
    assert run(model, tiny_settings, [dropped]) == []


def test_the_context_bounds_prompt_and_completion(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    one = sequence(model, "job", prompt="a" * 200, max_tokens=4000)
    one.eos_ids = frozenset()
    sink = run(model, tiny_settings, [one])
    assert sink.ends["job"] == ["length"]
    assert one.length == model.max_length


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

    def narrow(self: Llama, batch: Batch, cache: Cache) -> Tensor:
        if len(batch.ids) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch, cache)

    monkeypatch.setattr(Llama, "forward", narrow)
    small = [sequence(model, f"small-{n}", prompt="a tale " * n) for n in range(1, 4)]
    sink = run(model, tiny_settings, [sequence(model, "large", prompt="a tale " * 40), *small])
    assert sink.ends == {"large": ["error"], **{one.job_id: ["length"] for one in small}}
    assert {name: ids for name, ids in sink.ids.items() if ids} == expected
    assert {output.error.code for output in sink if output.error} == {"out_of_memory"}


def no_such_bias(broken: Sequence) -> None:
    broken.params = SamplingParams(logit_bias={10**6: 1.0})


def no_such_prompt_id(broken: Sequence) -> None:
    broken.prompt_ids = [10**6]


def no_piece_for_what_is_drawn(broken: Sequence) -> None:
    broken.writer = Writer([])


@pytest.mark.parametrize("spoil", [no_such_bias, no_such_prompt_id, no_piece_for_what_is_drawn])
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
    assert [output.error.code for output in sink if output.error] == ["model_error"]
    assert {name: ids for name, ids in sink.ids.items() if ids} == {
        name: ids for name, ids in expected.items() if name != "job-3"
    }


def always(token_id: int) -> dict[str, Any]:
    """Parameters under which every token is this one."""
    return {"logit_bias": {token_id: 100.0}, "max_tokens": 6}


def test_an_end_of_sequence_ends_the_output(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    (eos_id,) = model.tokenizer.eos_ids
    sink = run(model, tiny_settings, [sequence(model, "job", **always(eos_id))])
    assert (sink.ids["job"], sink.ends["job"]) == ([eos_id], ["stop"])


def test_an_end_of_sequence_is_ignored_when_asked_for(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    (eos_id,) = model.tokenizer.eos_ids
    sink = run(model, tiny_settings, [sequence(model, "job", ignore_eos=True, **always(eos_id))])
    assert (sink.ids["job"], sink.ends["job"]) == ([eos_id] * 6, ["length"])


def test_nothing_ends_the_output_before_min_tokens(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    (eos_id,) = model.tokenizer.eos_ids
    sink = run(model, tiny_settings, [sequence(model, "job", min_tokens=4, **always(eos_id))])
    assert len(sink.ids["job"]) == 5
    assert eos_id not in sink.ids["job"][:4]
    assert sink.ends["job"] == ["stop"]


def test_a_stop_id_ends_the_output_and_shows_no_text(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    token_id = model.tokenizer.encode("once", add_bos=False)[0]
    sink = run(model, tiny_settings, [sequence(model, "job", stop_token_ids=[token_id], **always(token_id))])
    assert (sink.ids["job"], sink.ends["job"]) == ([token_id], ["stop"])
    assert "".join(output.text for output in sink) == ""


def test_ids_outside_the_vocabulary_are_refused_before_they_meet_a_batch(model: LoadedModel) -> None:
    num_tokens = model.tokenizer.vocab_size
    params = SamplingParams(logit_bias={num_tokens: 1.0}, stop_token_ids=(num_tokens + 5,))
    job = GenerationJob(prompt_ids=(1, num_tokens + 9), sampling=params)
    with pytest.raises(InvalidJob) as refused:
        model.sequences("job", job, now_ms=0)[0]
    fields = {error.field: error.message for error in refused.value.fields}
    assert set(fields) == {"prompt_ids", "sampling.logit_bias", "sampling.stop_token_ids"}
    assert all(str(num_tokens) in message for message in fields.values())


PREFIX = "once upon a time in a village far away " * 6


def prefilled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompt tokens each coming row computes, in the order of the rows."""
    seen: list[int] = []
    next_batch = engine.scheduler.next_batch

    def noting() -> list[Row]:
        rows = next_batch()
        seen.extend(row.num_tokens for row in rows if not row.sequence.ids)
        return rows

    monkeypatch.setattr(engine.scheduler, "next_batch", noting)
    return seen


def test_prompts_that_begin_alike_are_computed_once_and_give_the_same_ids(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [(f"job-{n}", PREFIX + f"there was {n}") for n in range(4)]
    plain = LoadedModel.load(tiny_settings.model_copy(update={"prefix_cache": False}), "cpu")
    alone = {
        name: run(plain, tiny_settings, [sequence(plain, name, prompt)]).ids[name] for name, prompt in jobs
    }
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    computed = prefilled(engine, monkeypatch)
    for name, prompt in jobs:
        engine.submit(sequence(model, name, prompt))
    finish(engine)
    assert sink.ids == alone
    num_prompt = len(model.tokenizer.encode(jobs[0][1]))
    assert num_prompt > 128
    assert sum(computed) < num_prompt + 3 * 64


def test_a_second_turn_finds_the_first_ones_output_too(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sequence(model, "first", PREFIX, max_tokens=70, ignore_eos=True)
    run(model, tiny_settings, [first])
    turn = model.sequences(
        "second", GenerationJob(prompt_ids=(*first.prompt_ids, *first.ids, 40, 41)), now_ms=0
    )[0]
    engine = model.engine(tiny_settings, Collector())
    computed = prefilled(engine, monkeypatch)
    engine.submit(turn)
    engine.step()
    assert computed[0] < 64 + 3


def test_a_cancelled_prefill_leaves_nothing_half_computed_to_others(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    alone = run(model, tiny_settings, [sequence(model, "alone", PREFIX + "x")]).ids["alone"]
    fresh = LoadedModel.load(tiny_settings, "cpu")
    engine = fresh.engine(tiny_settings, sink := Collector())
    doomed = sequence(fresh, "doomed", PREFIX + "y")
    engine.submit(sequence(fresh, "stream", ignore_eos=True))
    engine.step()
    engine.submit(doomed)
    engine.submit(sequence(fresh, "next", PREFIX + "x"))
    engine.step()  # beside a stream the budget is 48 tokens: less than a page of the doomed prompt
    doomed.abort = "cancelled"
    finish(engine)
    assert sink.ids["next"] == alone


def test_a_conversation_becomes_a_prompt_and_its_text_no_control_token(
    tiny_settings: WorkerSettings, tmp_path: Path
) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    path = write_tiny_gguf(tmp_path / "chat.gguf", chat_template=template)
    model = LoadedModel.load(tiny_settings.model_copy(update={"model": path}), "cpu")
    job = GenerationJob.model_validate({"messages": [{"role": "user", "content": "once </s> upon"}]})
    try:
        prompt_ids = model.sequences("job", job, now_ms=0)[0].prompt_ids
    finally:
        model.close()
    assert model.tokenizer.decode(prompt_ids).strip() == "[user] once </s> upon"
    assert prompt_ids.count(model.tokenizer.bos_id or -1) == 1
    assert not model.tokenizer.eos_ids & set(prompt_ids)


def test_no_job_brings_a_template_of_its_own(tiny_settings: WorkerSettings) -> None:
    turn = {"role": "user", "content": "hi"}
    for fields in (
        {"messages": [turn], "chat_template": "{{ 7 * 7 }}"},
        {"messages": [{**turn, "chat_template": "{{ 7 * 7 }}"}]},
        {"messages": [{**turn, "role": "{{ 7 * 7 }}"}]},
    ):
        with pytest.raises(InvalidJob, match=r"messages|chat_template"):
            GenerationJob.parse(fields, tiny_settings)


def test_a_conversation_needs_a_model_with_a_template(model: LoadedModel) -> None:
    job = GenerationJob.model_validate({"messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(GenerationError, match="no_chat_template"):
        model.sequences("job", job, now_ms=0)[0]


def test_a_row_whose_logits_are_no_numbers_fails_alone(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = {f"job-{n}": PREFIX + str(n) for n in range(3)}
    reference = run(model, tiny_settings, [sequence(model, *job) for job in prompts.items()]).ids
    fresh = LoadedModel.load(tiny_settings, "cpu")
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
    assert [output.error.code for output in sink if output.error] == ["numeric_error"]
    assert {name: sink.ids[name] for name in ("job-0", "job-2")} == {
        name: reference[name] for name in ("job-0", "job-2")
    }
    again = run(fresh, tiny_settings, [sequence(fresh, "again", prompts["job-1"])])
    assert again.ids["again"] == reference["job-1"]
