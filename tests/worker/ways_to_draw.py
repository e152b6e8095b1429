"""Jobs that are drawn in every way there is, and what an engine says of them."""

import random
from itertools import cycle
from typing import Any

from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import Finished, NewTokens, PromptScores, SampledToken, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from tests.worker.engine_run import PREFIX

PENALTIES = {"repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.3}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "plain": {"temperature": 0.9},
    "filters": {"temperature": 1.2, "min_p": 0.01, "top_k": 60, "top_p": 0.9},
    "nucleus": {"temperature": 1.2, "top_p": 0.7},
    "penalties": PENALTIES,
    "a window": {"temperature": 0.8, **PENALTIES, "repeat_last_n": 9},
    "biases": {"temperature": 0.8, "logit_bias": {40: 4.0, 41: 4.0}},
    "biases and penalties": {"logit_bias": {40: 9.0, 41: 9.0}, **PENALTIES},
    "late ends": {"temperature": 0.8, "logit_bias": {2: 5.0}, "min_tokens": 7, "stop_token_ids": [40]},
    "late ends alone": {"min_tokens": 7, "stop_token_ids": [40, 41, 44, 290]},
    "stops": {"temperature": 0.9, "stop": ["e", "ll"]},
    "logprobs": {"temperature": 0.8, "logprobs": True, "top_logprobs": 3},
    "scored prompt": {"prompt_logprobs": 2, "logprobs": True},
    "a prompt alone": {"prompt_logprobs": 2, "max_tokens": 0},
    "several outputs": {"temperature": 1.0, "n": 3},
    "a form": {"temperature": 1.0, "form": {"regex": "[a-f ]{3,8}(one|two)"}},
    "a form, greedily": {"form": {"choice": ["no", "yes and no"]}},
    "a form, scored": {"logprobs": True, "top_logprobs": 3, "form": {"choice": ["no", "yes and no"]}},
    "a form with late ends": {
        "temperature": 1.5,
        "min_tokens": 7,
        "form": {"regex": "[ab]{1,16}"},
        **PENALTIES,
    },
}


#: What is said of each sequence, by its job and its number among the outputs of that.
Said = dict[tuple[str, int], list[object]]


def jobs(model: LoadedModel, *modes: str, seed: int = 0, num_sequences: int = 9) -> list[Sequence]:
    """Of several lengths, some of them with the same prompt in front. Fewer are the first of more."""
    rng, found = random.Random(seed), list[Sequence]()
    for number, mode in enumerate(cycle(modes)):
        asked = {"temperature": 0.0, "max_tokens": rng.randint(8, 22), "seed": number, **MODES[mode]}
        prompt = rng.choice(["", PREFIX]) + "once upon a time " * rng.randint(0, 4) + "a tale"
        job = job_of(asked, prompt=prompt)
        found += model.maker.sequences(f"job-{number}", job, now_ms=0)
        if len(found) >= num_sequences:
            break
    return found


def job_of(asked: dict[str, Any], **source: Any) -> GenerationJob:
    """A job with a prompt from `source`; a mode is its sampling, and perhaps its form."""
    sampling = {name: value for name, value in asked.items() if name != "form"}
    return GenerationJob(
        sampling=SamplingParams.model_validate(sampling), structured_outputs=asked.get("form"), **source
    )


def said(sink: list[StepOutput]) -> Said:
    """All that is said of each sequence, but not when; no log-probabilities."""
    found: Said = {}
    for output in sink:
        lines = found.setdefault((output.sequence.job_id, output.sequence.choice), [])
        for token in _tokens_of(output):
            lines.append((token.token_id, token.logprob is None, [token_id for token_id, _ in token.top]))
        if isinstance(output, NewTokens):
            lines += [output.text] if output.text else []
        if isinstance(output, Finished):
            lines += [output.finish_reason, output.stop_reason]
    return found


def logprobs(sink: list[StepOutput]) -> dict[str, list[float]]:
    """All log-probabilities that are said of each job."""
    found: dict[str, list[float]] = {}
    for output in sink:
        for token in _tokens_of(output):
            numbers = found.setdefault(output.sequence.job_id, [])
            numbers += [token.logprob or 0.0, *(value for _, value in token.top)]
    return found


def _tokens_of(output: StepOutput) -> tuple[SampledToken, ...]:
    match output:
        case NewTokens():
            return output.tokens
        case PromptScores():
            return output.scores
    return ()
