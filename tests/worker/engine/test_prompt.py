"""What is said of a prompt, and what is done to one that is too long."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import PromptScores, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading import sequence_maker
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.closeness import assert_close
from tests.model.tiny_folder import read_tokenizer, write_tiny_tokenizer
from tests.tiny import BOS_ID

PROMPT_IDS = tuple(5 + 7 * i % 80 for i in range(150))
TOLERANCE = 1e-4


def sequences(
    model: LoadedModel, prompt_ids: tuple[int, ...] = PROMPT_IDS, *, job_id: str = "job", **sampling: Any
) -> list[Sequence]:
    params = SamplingParams.model_validate({"max_tokens": 4, "ignore_eos": True, **sampling})
    return model.maker.sequences(job_id, GenerationJob(prompt_ids=prompt_ids, sampling=params), now_ms=0)


def outputs_of(model: LoadedModel, settings: WorkerSettings, submitted: list[Sequence]) -> list[StepOutput]:
    outputs = list[StepOutput]()
    engine = model.engine(settings, outputs.extend)
    for sequence in submitted:
        engine.submit(sequence)
    while engine.has_work:
        engine.step()
    return outputs


def reference(model: LoadedModel, ids: tuple[int, ...]) -> torch.Tensor:
    """log_softmax of the logits of one full forward: (T, V)."""
    pages = model.cache.pages.reserve("reference", len(ids))
    assert pages is not None
    logits = model.llama.forward(Batch.from_chunks([Chunk(pages, 0, ids, num_logits=len(ids))]), model.cache)
    model.cache.pages.release("reference")
    return logits.log_softmax(dim=-1)


def test_prompt_logprobs_are_those_of_a_full_forward(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    expected = reference(model, PROMPT_IDS)
    settings = tiny_settings.model_copy(update={"prefill_tokens": 1})  # times 32 while nothing else runs
    outputs = outputs_of(model, settings, sequences(model, prompt_logprobs=2))
    said = [one.scores for one in outputs if isinstance(one, PromptScores)]
    assert len(said) == 1, "once, with the first token"
    [scores] = said
    assert [score.token_id for score in scores] == list(PROMPT_IDS[1:])
    logprobs = torch.tensor([score.logprob for score in scores])
    rows = torch.arange(len(PROMPT_IDS) - 1)
    assert_close(logprobs, expected[rows, torch.tensor(PROMPT_IDS[1:])], atol=TOLERANCE, rtol=0)
    for row, score in enumerate(scores):
        values, ids = expected[row].topk(2)
        assert [token_id for token_id, _ in score.top] == ids.tolist()
        assert [value for _, value in score.top] == pytest.approx(values.tolist(), abs=TOLERANCE)


def test_a_prompt_has_no_more_scores_than_one_event_may(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_maker, "MAX_PROMPT_SCORES", 3 * len(PROMPT_IDS))
    assert sequences(model, prompt_logprobs=2)
    assert sequences(model, (*PROMPT_IDS, 5))
    with pytest.raises(InvalidJob, match=r"^sampling.prompt_logprobs: .* 600 scores .* at most 450\. Fix: "):
        sequences(model, prompt_logprobs=3)


def test_a_prompt_that_is_cached_is_scored_all_the_same(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    outputs_of(model, tiny_settings, sequences(model))
    outputs = outputs_of(model, tiny_settings, sequences(model, prompt_logprobs=0))
    (scores,) = [one.scores for one in outputs if isinstance(one, PromptScores)]
    assert len(scores) == len(PROMPT_IDS) - 1
    assert all(score.top == () for score in scores)


def test_scoring_a_prompt_changes_no_id_of_it_or_its_mates(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    def ids(first: dict[str, Any]) -> list[list[int]]:
        mate = sequences(model, PROMPT_IDS[:30], job_id="mate", temperature=0)
        both = [*sequences(model, temperature=0, **first), *mate]
        outputs_of(model, tiny_settings, both)
        return [one.ids for one in both]

    assert ids({"prompt_logprobs": 3}) == ids({})


def test_of_several_outputs_the_first_says_how_likely_the_prompt_was(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    outputs = outputs_of(model, tiny_settings, sequences(model, n=3, prompt_logprobs=1))
    said = [one.sequence.choice for one in outputs if isinstance(one, PromptScores)]
    assert said == [0]


def test_an_attempt_that_finds_tokens_recorded_scores_the_prompt_no_more(
    model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    [sequence] = sequences(model, prompt_logprobs=1)
    sequence.replay([9])
    outputs = outputs_of(model, tiny_settings, [sequence])
    assert not any(isinstance(one, PromptScores) for one in outputs)


def test_a_prompt_is_cut_only_when_asked_for(model: LoadedModel) -> None:
    too_long = tuple([9] * (model.plan.max_length + 5))
    with pytest.raises(GenerationError, match="truncate_prompt_tokens"):
        sequences(model, too_long)
    (cut,) = sequences(model, too_long, truncate_prompt_tokens=-1)
    assert len(cut.prompt_ids) == model.plan.max_length - 4
    assert sequences(model, PROMPT_IDS, truncate_prompt_tokens=6)[0].prompt_ids == list(PROMPT_IDS[-6:])
    assert sequences(model, PROMPT_IDS, truncate_prompt_tokens=150)[0].prompt_ids == list(PROMPT_IDS)


def test_a_prompt_is_cut_to_what_the_cache_has_room_for_if_that_is_less(model: LoadedModel) -> None:
    room = 4 * PAGE_TOKENS
    maker = replace(model.maker, kv_cache_tokens=room)
    assert room < maker.max_length
    params = SamplingParams(max_tokens=6, truncate_prompt_tokens=-1)
    job = GenerationJob(prompt_ids=(9,) * (room + 5), sampling=params, echo=True)
    (cut,) = maker.sequences("job", job, now_ms=0)
    assert cut.num_reserved == room
    told = maker.echoed_prompt(job, cut.prompt_ids)
    assert told is not None
    assert told.context_tokens == room, "as the worker's status says, too"


def test_a_prompt_that_is_only_scored_is_cut_to_the_context_too(model: LoadedModel) -> None:
    """One token is drawn behind it, and dropped."""
    prompt_ids = (9,) * (model.maker.max_length + 5)
    (cut,) = sequences(model, prompt_ids, max_tokens=0, prompt_logprobs=0, truncate_prompt_tokens=-1)
    assert len(cut.prompt_ids) == model.maker.max_length - 1


@pytest.mark.parametrize(
    ("num_prompt", "told"),
    [
        (256, r"prompt_ids: 256 tokens, but .* room for 256, .*Fix: shorten the prompt to 255 tokens"),
        (255, r"prompt_ids and sampling\.max_tokens: 255 \+ 2 tokens, but .*Fix: lower .* to 1 or less"),
    ],
)
def test_a_job_that_the_cache_has_no_room_for_is_told_what_helps(
    model: LoadedModel, num_prompt: int, told: str
) -> None:
    maker = replace(model.maker, kv_cache_tokens=256)
    job = GenerationJob(prompt_ids=(9,) * num_prompt, sampling=SamplingParams(max_tokens=2))
    with pytest.raises(GenerationError, match=told) as caught:
        maker.sequences("job", job, now_ms=0)
    assert caught.value.code == "prompt_too_long"


def test_a_prompt_of_which_the_tokenizer_makes_nothing_is_refused(model: LoadedModel, tmp_path: Path) -> None:
    """Nothing could follow it: it would run for ever. If nothing is computed, it is told as it is."""
    path = write_tiny_tokenizer(tmp_path)
    file = json.loads(path.read_text())
    file["normalizer"]["normalizers"].insert(0, {"type": "Strip", "strip_left": True, "strip_right": True})
    path.write_text(json.dumps(file))
    maker = replace(model.maker, tokenizer=read_tokenizer(path))
    job = GenerationJob(prompt=" ", add_special_tokens=False)
    with pytest.raises(InvalidJob, match=r"^prompt: the model's tokenizer makes no token of it\. Fix: "):
        maker.sequences("job", job, now_ms=0)
    told = job.model_copy(update={"echo": True, "sampling": SamplingParams(max_tokens=0)})
    assert maker.sequences("job", told, now_ms=0)[0].finish_reason == "length"
    assert maker.sequences("job", GenerationJob(prompt=" "), now_ms=0)[0].prompt_ids == [BOS_ID]


def test_a_bos_stays_at_the_front_of_a_prompt_that_is_cut(model: LoadedModel) -> None:
    bos = model.tokenizer.bos_id
    assert bos is not None
    cut = sequences(model, (bos, *PROMPT_IDS), truncate_prompt_tokens=6)[0].prompt_ids
    assert cut == [bos, *PROMPT_IDS[-5:]]
    assert sequences(model, (bos, *PROMPT_IDS), truncate_prompt_tokens=1)[0].prompt_ids == [PROMPT_IDS[-1]]
