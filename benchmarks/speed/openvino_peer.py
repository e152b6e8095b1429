"""OpenVINO GenAI, by its continuous batching and at its defaults: `openvino_peer.py FILE THREADS ROW CACHE`.

Runs in the environment that `make bench-peers` makes. Where the processor can, it computes in bfloat16.
"""

from collections.abc import Sequence
from importlib.metadata import version
from time import perf_counter
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.speed.child import Room, serve

CACHE_GIB, BATCHED_TOKENS = 2, 4_096
#: More than a row decodes before its batch is filled again.
MAX_TOKENS = 512


class OpenVinoBatch:
    """Rows of the one pipeline. After others were at work they begin again, before a step is timed."""

    def __init__(self, model: "OpenVino", prompts: Sequence[list[int]]) -> None:
        self._model, self._prompts = model, prompts

    def step(self) -> float:
        if self._model.at_work is not self:
            self._model.clear()
            handles = [self._model.submit(prompt, MAX_TOKENS) for prompt in self._prompts]
            while not all(handle.can_read() for handle in handles):
                self._model.pipeline.step()
            self._model.at_work = self
        started_s = perf_counter()
        self._model.pipeline.step()
        return perf_counter() - started_s


class OpenVino:
    def __init__(self, room: Room) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size, scheduling.max_num_batched_tokens = CACHE_GIB, BATCHED_TOKENS
        scheduling.enable_prefix_caching = True  # so that a batch is soon filled again
        properties = {"INFERENCE_NUM_THREADS": room.threads}
        self.pipeline = genai.ContinuousBatchingPipeline(str(room.path), scheduling, "CPU", properties)
        self.facts: dict[str, Any] = {"version": version("openvino-genai")}
        self.at_work: OpenVinoBatch | None = None
        self._handles: list[Any] = []
        self._num_jobs = 0

    def submit(self, prompt: Sequence[int], max_tokens: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
        self._num_jobs += 1
        handle = self.pipeline.add_request(self._num_jobs, openvino.Tensor(np.array([prompt])), config)
        self._handles.append(handle)
        return handle

    def clear(self) -> None:
        """Drop all rows."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
        self.at_work = None
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()

    def prefill_s(self, prompt: list[int]) -> float:
        """By as many steps as the pipeline cuts it into."""
        self.clear()
        self.submit(prompt, 1)
        started_s = perf_counter()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        return perf_counter() - started_s

    def batch(self, prompts: Sequence[list[int]]) -> OpenVinoBatch:
        return OpenVinoBatch(self, prompts)


if __name__ == "__main__":
    serve(OpenVino)
