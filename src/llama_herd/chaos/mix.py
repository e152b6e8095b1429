"""A mix of jobs that covers everything that a resumed job has to restore."""

from collections.abc import Iterator
from random import Random
from typing import Any

#: Parts of prompts like those that the bundled model was trained on.
OPENINGS = ("Once upon a time", "Long ago", "One sunny morning")
HEROES = ("a curious fox", "a kind baker", "a shy owl", "an old bear", "a quiet mouse", "a lively otter")

#: Each needs more than the recorded text to continue: noise, counts, or the end of the text.
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.9, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.7, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 0.6, "presence_penalty": 0.4},
    {"temperature": 0.8, "stop": ["zebra", "ain"]},
)


#: One for each list of the queue.
PRIORITIES = (1, 0, -1)


def jobs(seed: int, max_tokens: int) -> Iterator[dict[str, Any]]:
    """The fields of endless jobs, the same for the same seed; at most `max_tokens` tokens each."""
    rng = Random(seed)
    while True:
        sampling = {**rng.choice(WAYS), "seed": rng.getrandbits(32), "ignore_eos": True}
        sampling["max_tokens"] = rng.randint(max(1, max_tokens // 2), max_tokens)
        prompt, priority = f"{rng.choice(OPENINGS)}, {rng.choice(HEROES)}", rng.choice(PRIORITIES)
        yield {"prompt": prompt, "sampling": sampling, "priority": priority}
