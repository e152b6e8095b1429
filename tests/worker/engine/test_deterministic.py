"""The deterministic mode: a job's ids depend on neither its batch mates nor on crashes, bit for bit."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from llama_herd.errors import SettingsError
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.tiling import FIXED
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import Finished, NewTokens, PromptScores, SampledToken, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.long

NUM_JOBS = 32


@pytest.fixture(scope="module")
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    changes = {"deterministic": True, "slots": NUM_JOBS, "kv_cache_tokens": NUM_JOBS * 128}
    return tiny_settings.model_copy(update=changes)


@pytest.fixture(scope="module")
def fixed(settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(settings, "cpu")


def sequences(model: LoadedModel, number: int) -> list[Sequence]:
    """Job `number`: always the same prompt and parameters, one output or three, greedy or drawn."""
    rng = random.Random(number)
    max_tokens, temperature = rng.randint(2, 16), rng.choice([0.0, 0.7, 1.3])
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, max_tokens // 2]),
        temperature=temperature,
        n=rng.choice([1, 3]) if temperature else 1,
        top_k=rng.choice([0, 40]),
        top_p=rng.choice([1.0, 0.9]),
        min_p=rng.choice([0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        presence_penalty=rng.choice([0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.3]),
        repeat_last_n=rng.choice([-1, 4]),
        logit_bias=rng.choice([{}, {9: 2.0, 17: -3.0}]),
        stop=rng.choice([(), ("e", "th")]),
        stop_token_ids=rng.choice([(), (12, 30)]),
        seed=number,
        logprobs=True,
        top_logprobs=rng.choice([0, 3]),
        prompt_logprobs=rng.choice([None, 0, 2]),
    )
    prompt = "once upon a time in a village " * rng.randint(1, 3)
    return model.maker.sequences(f"job-{number}", GenerationJob(prompt=prompt, sampling=sampling), now_ms=0)


@dataclass
class Outcome:
    """What an engine said of one output of a job."""

    drawn: list[SampledToken] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    prompt_scores: tuple[SampledToken, ...] | None = None

    def add(self, output: StepOutput) -> None:
        match output:
            case NewTokens():
                self.drawn += output.tokens
                self.text += output.text
            case PromptScores():
                assert self.prompt_scores is None, "a prompt is scored once"
                self.prompt_scores = output.scores
            case Finished():
                self.finish_reason = output.finish_reason


class Mix:
    """Jobs that run together; with `crashes`, some of their sequences are lost on the way and resumed."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings, numbers: list[int]) -> None:
        self._model = model
        self._engine = model.engine(settings, self._note)
        self._running = {one.name: one for number in numbers for one in sequences(model, number)}
        self._outcomes = {name: Outcome() for name in self._running}
        for sequence in self._running.values():
            self._engine.submit(sequence)

    def finish(self, crashes: random.Random | None = None) -> dict[str, Outcome]:
        """Run all to their ends; the outcomes by the sequences' names."""
        while self._engine.has_work:
            self._engine.step()
            if crashes is not None and crashes.random() < 0.3:
                lost = self._running[crashes.choice(list(self._running))]
                if lost.finish_reason is None:
                    self._resume(lost)
        return self._outcomes

    def _note(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            self._outcomes[output.sequence.name].add(output)

    def _resume(self, lost: Sequence) -> None:
        self._engine.scheduler.remove(lost)
        again = sequences(self._model, int(lost.job_id.removeprefix("job-")))[lost.choice]
        assert again.replay(lost.ids) == self._outcomes[lost.name].text
        self._running[lost.name] = again
        self._engine.submit(again)


@pytest.mark.parametrize(
    ("num_jobs", "num_mixes"), [(12, 5), pytest.param(NUM_JOBS, 100, marks=pytest.mark.slow)]
)
def test_random_mixes_with_crashes_give_each_job_what_it_gets_alone(
    fixed: LoadedModel, settings: WorkerSettings, num_jobs: int, num_mixes: int
) -> None:
    alone = {number: Mix(fixed, settings, [number]).finish() for number in range(num_jobs)}
    reasons = {outcome.finish_reason for job in alone.values() for outcome in job.values()}
    assert reasons == {"stop", "length"}
    for mix in range(num_mixes):
        rng = random.Random(mix)
        numbers = rng.sample(range(num_jobs), rng.randint(1, num_jobs))
        together = Mix(fixed, settings, numbers).finish(crashes=rng)
        expected = {name: outcome for number in numbers for name, outcome in alone[number].items()}
        assert together == expected, f"mix {mix}"


def test_a_rows_logits_are_bit_equal_from_blocks_too(settings: WorkerSettings, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type="Q4_0")
    model = LoadedModel.load(settings.model_copy(update={"weights": "quantized", "model": path}), "cpu")
    assert model.plan.keeps_blocks
    test_a_rows_logits_are_bit_equal_however_its_tokens_were_cut(model)


def test_a_rows_logits_are_bit_equal_however_its_tokens_were_cut(fixed: LoadedModel) -> None:
    ids = fixed.tokenizer.encode("once upon a time in a village far away")
    whole = logits(fixed, [(0, ids)])
    pieces = logits(fixed, [(start, ids[start : start + 3]) for start in range(0, len(ids), 3)])
    assert torch.equal(whole, pieces)


def logits(model: LoadedModel, cuts: list[tuple[int, list[int]]]) -> torch.Tensor:
    """Logits after the last token, the tokens being run in these pieces, each beside a stranger."""
    it = model.cache.prefixes.reserve("it", 128, [])
    stranger = model.cache.prefixes.reserve("stranger", 128, [])
    assert it is not None
    assert stranger is not None
    for start, ids in cuts:
        beside = Chunk(stranger.pages, 0, list(range(5, 5 + len(ids))), num_logits=0)
        batch = Batch.from_chunks([beside, Chunk(it.pages, start, ids, True)], "cpu", FIXED.span_tokens)
        last = model.llama.forward(batch, model.cache)
    model.cache.pages.release("it")
    model.cache.pages.release("stranger")
    return last


@pytest.mark.parametrize("change", [{"device": "cuda:0"}, {"dtype": "bfloat16"}])
def test_it_is_refused_where_it_cannot_be_kept(settings: WorkerSettings, change: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="HERD_DETERMINISTIC"):
        LoadedModel.load(settings.model_copy(update=change), change.get("device", "cpu"))
