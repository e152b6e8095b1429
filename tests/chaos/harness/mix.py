"""A mix of jobs that covers everything that a resumed job has to restore."""

from collections.abc import Iterator
from itertools import count
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


_NAMES = {"type": "array", "minItems": 40, "items": {"type": "string", "maxLength": 30}}
#: Forms of outputs that are longer than what a job may generate.
FORMS: tuple[dict[str, Any], ...] = (
    {"json": {"type": "object", "properties": {"names": _NAMES}, "required": ["names"]}},
    {"regex": r"([A-Z][a-z ]{20,60}[.!?] ?){40}"},
)
#: One of so many jobs has one of them.
FORM_EVERY = 4

#: One for each list of the queue.
PRIORITIES = (1, 0, -1)


def mixed_jobs(seed: int, max_tokens: int) -> Iterator[dict[str, Any]]:
    """The fields of endless jobs, the same for the same seed; at most `max_tokens` tokens each."""
    rng = Random(seed)
    for number in count():
        sampling = {**rng.choice(WAYS), "seed": rng.getrandbits(32), "ignore_eos": True}
        sampling["max_tokens"] = rng.randint(max(1, max_tokens // 2), max_tokens)
        prompt, priority = f"{rng.choice(OPENINGS)}, {rng.choice(HEROES)}", rng.choice(PRIORITIES)
        turn, place = divmod(number, FORM_EVERY)
        form = {} if place else {"structured_outputs": FORMS[turn % len(FORMS)]}
        yield {"prompt": prompt, "sampling": sampling, "priority": priority, **form}
