"""Whatever kombu's JSON can carry comes through a job's message, as often as it is pushed again."""

import base64
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from kombu.utils.json import dumps

from llama_herd.errors import InvalidJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.worker.broker.message_json import MAX_CONTAINERS, UnreadableJson, as_plain_json, read_json
from llama_herd.worker.broker.task_message import NO_JOB, TaskMessage
from llama_herd.worker.settings import WorkerSettings
from tests.examples import for_any
from tests.worker.broker.kombu_values import HEADERS, TYPES, nested, of_type, typed

PLACE = {"id": "job-1", "properties": {"delivery_tag": "aa6e4c1c"}}

#: Headers that each envelope has of its own.
OF_ENVELOPES = {"argsrepr", "kwargsrepr", "task", "lang"}


def read(parts: Any, **headers: Any) -> TaskMessage:
    return TaskMessage.read(dumps(parts), {**headers, **PLACE}, WorkerSettings())


def pushed_again(message: TaskMessage) -> tuple[dict[str, Any], TaskMessage]:
    """The headers and the content of a message that a sweep has pushed."""
    assert message.envelope is not None
    envelope = read_json(message.envelope.text)
    headers = {**envelope["headers"], **PLACE, "properties": {"delivery_tag": "job-1:1:1700000000000"}}
    return headers, TaskMessage.read(base64.b64decode(envelope["body"]), headers, WorkerSettings())


names = st.text(max_size=8)
signatures = st.fixed_dictionaries(
    {
        "task": st.just("then"),
        "args": st.lists(nested, max_size=2),
        "options": st.dictionaries(st.text(), typed),
    },
    optional={"kwargs": st.dictionaries(st.text(), nested, max_size=2)},
)


@pytest.mark.long
@for_any(st.lists(signatures, max_size=2), st.none() | signatures)
def test_links_keep_every_value_and_so_do_those_of_a_message_that_is_pushed_again(
    links: list[Any], chord: Any
) -> None:
    embed = {"callbacks": links, "errbacks": links, "chain": links, "chord": chord}
    message = read([[], {"prompt": "hi"}, embed])
    assert message.error is None
    assert message.embed == embed
    _, again = pushed_again(message)
    assert again == TaskMessage(embed=embed)


@pytest.mark.long
@for_any(st.sampled_from(HEADERS), nested)
def test_headers_of_any_type_keep_no_job_from_its_record(name: str, value: Any) -> None:
    message = read([[], {"prompt": "hi"}, None], **{name: value})
    assert isinstance(message.job, GenerationJob)
    headers, _ = pushed_again(message)
    assert headers.get(name) in (value, None) or name in OF_ENVELOPES


@pytest.mark.long
@for_any(st.sampled_from(TYPES).flatmap(of_type), st.sampled_from(sorted(GenerationJob.model_fields)))
def test_a_field_of_a_job_may_have_any_type_that_has_a_plain_form(value: Any, name: str) -> None:
    """A decimal counts as its number, any other as its text; or the field is named."""
    message, plain = read([[], {"prompt": "hi", name: value}, None]), as_plain_json(value)
    if not isinstance(plain, bytes):
        same = read([[], {"prompt": "hi", name: plain}, None])
        assert (message.job, str(message.error)) == (same.job, str(same.error))
    assert message.error is None or name in str(message.error)


def test_numbers_that_are_decimals_are_numbers() -> None:
    sampling = {
        "temperature": Decimal("0.5"),
        "top_p": Decimal(1),
        "max_tokens": Decimal("16"),
        "seed": Decimal(7),
    }
    message = read([[], {"prompt": b"hi", "sampling": sampling, "timeout_s": Decimal("2.5")}, None])
    assert message.error is None
    assert isinstance(message.job, GenerationJob)
    drawn = message.job.sampling
    assert (message.job.prompt, message.job.timeout_s) == ("hi", 2.5)
    assert (drawn.temperature, drawn.top_p, drawn.max_tokens, drawn.seed) == (0.5, 1.0, 16, 7)


@pytest.mark.parametrize("text", ["1e999999999", "-1e999999999", "1e-999999999", "NaN", "sNaN", "9" * 400])
def test_a_decimal_that_is_no_number_of_ours_is_an_error_of_its_field(text: str) -> None:
    message = read([[], {"prompt": "hi", "sampling": {"temperature": Decimal(text)}}, None])
    assert message.job is NO_JOB or text == "1e-999999999"


@pytest.mark.parametrize(
    "value",
    [
        {"__type__": "decimal", "__value__": "x"},
        {"__type__": "datetime", "__value__": 7},
        {"__type__": "bytes", "__value__": None},
        {"__type__": "uuid", "__value__": {"hex": "x"}},
        {"__type__": "uuid", "__value__": {"h" * 99: 1}},
        {"__type__": "somebody's own", "__value__": 1},
        {"__type__": ["no", "name"], "__value__": 1},
    ],
)
def test_a_value_that_kombu_cannot_read_is_an_error_of_the_job(value: Any) -> None:
    message = TaskMessage.read(json.dumps([[], {"prompt": "hi", "x": value}, {}]), PLACE, WorkerSettings())
    assert message.job is NO_JOB
    assert isinstance(message.error, InvalidJob)
    assert "message: cannot be read" in str(message.error)


def test_a_message_of_too_many_objects_is_refused_before_it_is_read() -> None:
    with pytest.raises(
        UnreadableJson, match=rf"at most {MAX_CONTAINERS} .*, got at least {MAX_CONTAINERS + 1}"
    ):
        read_json("[" + "[]," * (MAX_CONTAINERS - 1) + "[]]")
