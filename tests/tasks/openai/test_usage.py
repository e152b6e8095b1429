"""The tokens of several jobs together."""

import pytest

from llama_herd.tasks.openai.response import summed_usage, usage_object
from llama_herd.tasks.protocol.events import Usage

USAGE = Usage(prompt_tokens=70, completion_tokens=2, total_tokens=72)
TWICE = {"prompt_tokens": 140, "completion_tokens": 4, "total_tokens": 144}


@pytest.mark.parametrize(
    ("cached", "more"),
    [
        ((64, 64), {"prompt_tokens_details": {"cached_tokens": 128}}),
        ((0, 64), {"prompt_tokens_details": {"cached_tokens": 64}}),
        ((64, None), {}),  # one worker has not counted them
        ((None, None), {}),
    ],
)
def test_cached_tokens_are_summed_if_all_were_counted(
    cached: tuple[int | None, ...], more: dict[str, object]
) -> None:
    assert summed_usage([usage_object(USAGE, one) for one in cached]) == {**TWICE, **more}


def test_one_unknown_usage_makes_the_sum_unknown() -> None:
    assert summed_usage([usage_object(USAGE, 64), usage_object(None, None)]) is None
