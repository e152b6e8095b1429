"""A mix of jobs that covers everything that a resumed job has to restore."""

from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice
from random import Random
from typing import Any

from tests.chaos.harness.text_models import TextKind

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

#: One of so many jobs has texts, where models for these are served.
TEXTS_EVERY = 4
#: Of such a job: long enough that a fault meets it in its midst.
NUM_TEXTS = 40

#: One for each list of the queue.
PRIORITIES = (1, 0, -1)


def mixed_jobs(seed: int, max_tokens: int, kinds: Sequence[TextKind] = ()) -> Iterator[dict[str, Any]]:
    """The fields of endless jobs, the same for the same seed; at most `max_tokens` tokens each.

    kinds: of the jobs with texts among them. The model of each has its name.
    """
    tales, texts = _tales(seed, max_tokens), _texts(seed, kinds)
    while True:
        yield from islice(tales, TEXTS_EVERY - 1)
        yield next(texts if kinds else tales)


def _texts(seed: int, kinds: Sequence[TextKind]) -> Iterator[dict[str, Any]]:
    """The fields of jobs with texts, no two of which are equal."""
    rng = Random(seed)
    for number, kind in enumerate(cycle(kinds)):
        texts = [
            f"{rng.choice(HEROES)}, {number} and {n}" for n in range(rng.randint(NUM_TEXTS // 2, NUM_TEXTS))
        ]
        source = {"texts": texts} if kind == "embed" else {"query": rng.choice(OPENINGS), "documents": texts}
        yield {"kind": kind, "model": kind, "priority": rng.choice(PRIORITIES), **source}


def _tales(seed: int, max_tokens: int) -> Iterator[dict[str, Any]]:
    """The fields of jobs that generate."""
    rng = Random(seed)
    for number in count():
        sampling = {**rng.choice(WAYS), "seed": rng.getrandbits(32), "ignore_eos": True}
        sampling["max_tokens"] = rng.randint(max(1, max_tokens // 2), max_tokens)
        prompt, priority = f"{rng.choice(OPENINGS)}, {rng.choice(HEROES)}", rng.choice(PRIORITIES)
        turn, place = divmod(number, FORM_EVERY)
        form = {} if place else {"structured_outputs": FORMS[turn % len(FORMS)]}
        yield {"prompt": prompt, "sampling": sampling, "priority": priority, **form}
