"""Our engine, without a queue: `python -m benchmarks.speed.ours FILE THREADS`."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.speed.child import ids, serve
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

#: More rows than any batch has, longer than any becomes; and tokens that a row may decode.
SLOTS, CONTEXT_TOKENS, MAX_TOKENS = 32, 1_024, 128
#: Prompts are not cut, so that hardly a row decodes before the others.
WHOLE_PROMPTS = 1 << 16


class OurBatch:
    """Rows of an engine of its own; all of them decode. Their prompts begin alike and are computed once."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings, lengths: Sequence[int]) -> None:
        decoding = set[str]()

        def note(outputs: list[StepOutput]) -> None:
            decoding.update(output.sequence.job_id for output in outputs if output.tokens)

        self._engine = model.engine(settings.model_copy(update={"prefill_tokens": WHOLE_PROMPTS}), note)
        sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True)
        for row, length in enumerate(lengths):
            job = GenerationJob(prompt_ids=tuple(ids(length)), sampling=sampling)
            self._engine.submit(*model.sequences(f"{sum(lengths)}-{row}", job, now_ms=0))
        while len(decoding) < len(lengths):
            self._engine.step()

    def step(self) -> float:
        started_s = perf_counter()
        self._engine.step()
        return perf_counter() - started_s


class Ours:
    """A model as a worker loads it, with its default settings but for threads and room."""

    def __init__(self, path: Path, threads: int) -> None:
        self._settings = WorkerSettings.read(
            model=path, threads=threads, slots=SLOTS, context_tokens=CONTEXT_TOKENS
        )
        self._model = LoadedModel.load(self._settings, "cpu")
        self.facts: dict[str, Any] = {
            "dtype": self._model.plan.dtype,
            "form": self._model.plan.form_note,
            "weights_s": self._model.weights_s,
        }
        self._num_prefills = 0

    def prefill_s(self, num_tokens: int) -> float:
        self._num_prefills += 1
        engine = self._model.engine(self._settings, lambda outputs: None)
        sampling = SamplingParams(max_tokens=1, temperature=0)
        job = GenerationJob(prompt_ids=tuple(ids(num_tokens, self._num_prefills)), sampling=sampling)
        engine.submit(*self._model.sequences(f"prompt-{self._num_prefills}", job, now_ms=0))
        started_s = perf_counter()
        while engine.has_work:
            engine.step()
        return perf_counter() - started_s

    def batch(self, lengths: Sequence[int]) -> OurBatch:
        self._model.llama.settle()  # as a worker does before its first job
        return OurBatch(self._model, self._settings, lengths)


if __name__ == "__main__":
    serve(Ours)
