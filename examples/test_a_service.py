"""Tests of a service that asks a herd: real jobs and a real Redis, without torch and without a model.

pip install '.[testing]' pytest
pytest examples/test_a_service.py
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from llama_herd import AsyncClient, Client, ErrorCode, GenerationError, Token
from llama_herd.testing import Answer, FakeHerd

pytest_plugins = ["llama_herd.testing.plugin"]  # in a project: in the conftest.py at its root

COLOURS = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}


# The service. It finds Redis where HERD_REDIS_URL says, in production and here.


def mood_of(review: str) -> str:
    """Good or bad; asked once more if that may help."""
    with Client() as herd:
        for _ in range(2):
            job_id = herd.submit(prompt=f"Is this review good or bad? {review}", sampling={"max_tokens": 50})
            try:
                return herd.result(job_id).raise_for_error().text
            except GenerationError as error:
                if not error.retriable:
                    raise
        return "unknown"


async def words_of(prompt: str) -> AsyncIterator[str]:
    async with AsyncClient() as herd:
        async for event in herd.stream(await herd.submit(prompt=prompt)):
            if isinstance(event, Token):
                yield event.text


# Its tests.


def test_an_answer(herd: FakeHerd) -> None:
    herd.answer("good")
    herd.answer("bad", to="(?i)broken|late")
    assert mood_of("I like it") == "good"
    assert mood_of("It came late") == "bad"
    assert [asked.job.sampling.max_tokens for asked in herd.jobs] == [50, 50]


def test_it_tries_again(herd: FakeHerd) -> None:
    herd.answer(Answer.failing(ErrorCode.OUT_OF_MEMORY), "good")
    assert mood_of("I like it") == "good"
    assert len(herd.jobs) == 2


def test_it_says_what_it_cannot_do(herd: FakeHerd) -> None:
    herd.answer(Answer.failing(ErrorCode.PROMPT_TOO_LONG))
    with pytest.raises(GenerationError, match="prompt_too_long"):
        mood_of("I like it")


def test_a_stream_goes_on_when_its_worker_dies(herd: FakeHerd) -> None:
    herd.answer(Answer.of("Once upon a time there was a llama.", dies_after=3))

    async def read() -> str:
        return "".join([text async for text in words_of("A tale, please")])

    assert asyncio.run(read()) == "Once upon a time there was a llama."


def test_an_object_follows_its_schema(herd: FakeHerd) -> None:
    herd.answer()  # what a job asks for
    structured = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOURS}}
    job_id = herd.client.submit(prompt="Which colour?", response_format=structured)
    assert herd.client.result(job_id).text == '{"colour": "red"}'
