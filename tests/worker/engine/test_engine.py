"""Laws of the engine: a sequence's ids do not depend on who runs beside it, or on what happened before."""

import random
from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Finished
from llama_herd.worker.engine.runner import Row
from llama_herd.worker.engine.sequence import Handling, Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import PREFIX, Collector, finish, run, sequence, with_empty_cache


def mixed_jobs(model: LoadedModel, seed: int) -> list[Sequence]:
    rng = random.Random(seed)
    return [
        sequence(
            model,
            f"job-{index}",
            prompt="once upon a time " * rng.randint(1, 6),
            max_tokens=rng.randint(1, 20),
            temperature=rng.choice([0.0, 0.9]),
            top_k=rng.choice([0, 20]),
        )
        for index in range(10)
    ]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_gives_each_job_what_it_gets_alone(
    model: LoadedModel, tiny_settings: WorkerSettings, seed: int
) -> None:
    together = run(model, tiny_settings, mixed_jobs(model, seed)).ids
    for one in mixed_jobs(model, seed):
        assert run(model, tiny_settings, [one]).ids[one.job_id] == together[one.job_id]


@pytest.mark.long
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
        assert text + rest.text == whole.text


def test_every_sequence_starts_once_and_ends_once(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    sink = run(model, tiny_settings, mixed_jobs(model, 5))
    assert {job_id: len(ends) for job_id, ends in sink.ends.items()} == {f"job-{i}": 1 for i in range(10)}
    assert len(sink.admitted) == 10


def test_sequences_join_and_leave_at_any_step(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    engine.submit(sequence(model, "long", max_tokens=40))
    for _ in range(5):
        engine.step()
    engine.submit(sequence(model, "short", max_tokens=3))
    finish(engine)
    order = [output.sequence.job_id for output in sink if isinstance(output, Finished)]
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
    engine.abort([doomed.info], "cancelled")
    engine.step()
    assert sink.ends["doomed"] == ["cancelled"]
    assert len(sink.ids["doomed"]) == 1
    assert engine.prefixes.pages.num_held == 0


def test_an_overdue_sequence_is_not_computed(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    late = sequence(model, "late")
    late.deadline_s = 0.0
    sink = run(model, tiny_settings, [late])
    assert sink.ends["late"] == ["deadline"]
    assert sink.ids["late"] == []


def test_each_sequence_ends_at_its_own_deadline(
    model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock, whatever has ended before, and also from its admission on."""
    clock = [100.0]
    for module in ("engine", "sequence"):
        monkeypatch.setattr(f"llama_herd.worker.engine.{module}.monotonic", lambda: clock[0])
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    for name, deadline_s in (("third", 103.0), ("first", 101.0), ("second", None), ("never", None)):
        one = sequence(model, name, max_tokens=100)
        one.deadline_s, one.handling = deadline_s, Handling(time_limit_s=2.0 if name == "second" else None)
        engine.submit(one)
    ended = []
    for clock[0] in (100.0, 100.9, 101.0, 102.5, 103.0):
        engine.step()
        ended.append([*sink.ends])
    assert ended == [[], [], ["first"], ["first", "second"], ["first", "second", "third"]]
    assert all(end == ["deadline"] for end in sink.ends.values())


def test_a_dropped_sequence_says_nothing(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    dropped = sequence(model, "dropped")
    engine.submit(dropped)
    engine.abort([dropped.info], "dropped")
    finish(engine)
    assert sink == []


def test_what_is_said_to_a_sequence_that_is_not_there_is_not_heard(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    """It has ended, or never came; one of the same name that has come since is another one."""
    sink = Collector()
    engine = model.engine(tiny_settings, sink)
    earlier, later = sequence(model, "job"), sequence(model, "job")
    engine.abort([earlier.info], "cancelled")
    engine.submit(earlier)
    finish(engine)
    later.is_confirmed = False
    engine.submit(later)
    engine.confirm([earlier.info])
    engine.abort([earlier.info], "dropped")
    engine.step()
    assert later.num_cached == 0
    engine.confirm([later.info])
    finish(engine)
    assert sink.ends["job"] == ["length", "length"]


def test_the_context_bounds_prompt_and_completion(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    one = sequence(model, "job", prompt="a" * 480, max_tokens=4000)
    one.eos_ids = frozenset()
    assert len(one.prompt_ids) < model.plan.max_length - 20
    sink = run(model, tiny_settings, [one])
    assert sink.ends["job"] == ["length"]
    assert one.length == model.plan.max_length


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
    assert sink.text == ""


def test_ids_outside_the_vocabulary_are_refused_before_they_meet_a_batch(model: LoadedModel) -> None:
    num_tokens = model.tokenizer.vocab_size
    params = SamplingParams(logit_bias={num_tokens: 1.0}, stop_token_ids=(num_tokens + 5,))
    job = GenerationJob(prompt_ids=(1, num_tokens + 9), sampling=params)
    with pytest.raises(InvalidJob) as refused:
        model.maker.sequences("job", job, now_ms=0)[0]
    fields = {error.field: error.message for error in refused.value.fields}
    assert set(fields) == {"prompt_ids", "sampling.logit_bias", "sampling.stop_token_ids"}
    assert all(str(num_tokens) in message for message in fields.values())


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


@pytest.mark.long
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
    turn = model.maker.sequences(
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
    fresh = with_empty_cache(model)
    engine = fresh.engine(tiny_settings, sink := Collector())
    doomed = sequence(fresh, "doomed", PREFIX + "y")
    engine.submit(sequence(fresh, "stream", ignore_eos=True))
    engine.step()
    engine.submit(doomed)
    engine.submit(sequence(fresh, "next", PREFIX + "x"))
    engine.step()  # beside a stream the budget is 48 tokens: less than a page of the doomed prompt
    engine.abort([doomed.info], "cancelled")
    finish(engine)
    assert sink.ids["next"] == alone
