"""A result as a service's own code and tests have it."""

import pytest
from pydantic import ValidationError

import llama_herd
import llama_herd.tasks
from llama_herd.tasks.protocol.events import Usage
from llama_herd.tasks.protocol.result import Result


def test_a_result_of_a_text_is_one_of_a_job_that_ended_by_itself() -> None:
    result = Result.of("a tale")
    assert (result.text, result.answer, result.finish_reason, result.error) == (
        "a tale",
        "a tale",
        "stop",
        None,
    )
    assert Result.model_validate_json(result.model_dump_json()) == result


def test_its_other_fields_can_be_given_and_are_checked() -> None:
    usage = Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5)
    assert Result.of("a", finish_reason="length", usage=usage).usage == usage
    with pytest.raises(ValidationError, match="finish_reason"):
        Result.of("a", finish_reason="tired")


def test_it_shows_only_what_it_has() -> None:
    assert repr(Result.of("a tale")) == (
        "Result(text='a tale', ids=(), finish_reason='stop', job='test', attempts=1)"
    )


@pytest.mark.parametrize("module", [llama_herd, llama_herd.tasks])
def test_the_package_lists_its_public_names(module: object) -> None:
    assert {"Client", "GenerationJob", "Result"} <= set(dir(module))
