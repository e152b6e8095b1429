"""What is asked of a model while it is measured."""

from random import Random

from llama_herd.tasks.protocol.sampling import SamplingParams

#: Ids that are plain tokens in every model here.
PLAIN_IDS = range(3, 2000)

#: What the bundled model is asked.
PROMPTS = ("Once upon a time", "One sunny morning", "There was a little", "Continue the list: one, two,")


def greedy(max_tokens: int) -> SamplingParams:
    """So many tokens exactly, the likeliest each."""
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)


def drawn(max_tokens: int) -> SamplingParams:
    """So many tokens exactly, drawn as by default."""
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def prompts(num: int) -> list[str]:
    """Those of the bundled model, over and over."""
    return [PROMPTS[number % len(PROMPTS)] for number in range(num)]


def random_prompt(random: Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(random.choices(PLAIN_IDS, k=num_tokens))
