"""What a job may hold: boundary values, all errors at once, and no error that repeats what was asked."""

from contextlib import suppress
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.protocol.job import GenerationJob, is_job_id, seed_of
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.settings import Settings

SETTINGS = Settings(max_prompt_bytes=40, max_tokens_limit=100)
CANARY = "canary-7f3a"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def sampling(**fields: Any) -> dict[str, Any]:
    return {"prompt": "x", "sampling": fields}


def secret(text: object) -> dict[str, Any]:
    return {"prompt": "x", "webhook": "https://a/", "webhook_secret": text}


GOOD: dict[str, dict[str, Any]] = {
    "shortest prompt": {"prompt": "x"},
    "longest prompt": {"prompt": "é" * 20},
    "blank prompt": {"prompt": " \n\t"},
    "foreign prompt": {"prompt": "שלום 😀"},
    "one id": {"prompt_ids": [0]},
    "most ids": {"prompt_ids": [2**31 - 1] * 10},
    "version": {"prompt": "x", "v": 1},
    "model": {"prompt": "x", "model": "Llama-2_7b.chat"},
    "least urgent": {"prompt": "x", "priority": -10},
    "most urgent": {"prompt": "x", "priority": 10},
    "deadline": {"prompt": "x", "deadline_ms": 1},
    "timeout": {"prompt": "x", "timeout_s": 0.5},
    "no flush": {"prompt": "x", "flush_ms": 0},
    "no retries": {"prompt": "x", "retries": 0, "retry_backoff_s": 0},
    "most retries": {"prompt": "x", "retries": 20, "retry_backoff_s": 3600},
    "a webhook": {"prompt": "x", "webhook": "https://example.com:8443/hook?key=%20"},
    "a webhook at an address": {"prompt": "x", "webhook": "http://[::1]:1"},
    "longest webhook": {"prompt": "x", "webhook": "https://a/".ljust(2048, "x")},
    "longest flush": {"prompt": "x", "flush_ms": 60_000},
    "metadata": {"prompt": "x", "metadata": {"k" * 64: "v" * 512}},
    "most metadata": {"prompt": "x", "metadata": {str(n): "" for n in range(16)}},
    "one token": sampling(max_tokens=1),
    "most tokens": sampling(max_tokens=100),
    "greedy": sampling(temperature=0),
    "hottest": sampling(temperature=2.0),
    "no top_k": sampling(top_k=0),
    "smallest top_p": sampling(top_p=1e-9),
    "largest top_p": sampling(top_p=1),
    "seed zero": sampling(seed=0),
    "largest seed": sampling(seed=2**63 - 1),
    "no seed": sampling(seed=None),
    "longest stop": sampling(stop=["é" * 64]),
    "most stops": sampling(stop=["x"] * 16),
    "a chat": {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "é" * 20}]},
    "no penalties": sampling(repetition_penalty=1, presence_penalty=0, frequency_penalty=0, repeat_last_n=-1),
    "most penalties": sampling(
        repetition_penalty=10, presence_penalty=2, frequency_penalty=-2, repeat_last_n=0
    ),
    "min_p": sampling(min_p=1),
    "largest top_n_sigma": sampling(top_n_sigma=100),
    "biases as JSON has them": sampling(logit_bias={"0": -100, "31999": 100.0}),
    "as many tokens as allowed": sampling(min_tokens=100, max_tokens=100),
    "stop ids": sampling(stop_token_ids=[0, 2**31 - 1], ignore_eos=True),
    "most logprobs": sampling(logprobs=True, top_logprobs=20),
}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({}, "prompt"),
    "null prompt": ({"prompt": None}, "prompt"),
    "empty prompt": ({"prompt": ""}, "prompt"),
    "prompt with NUL": ({"prompt": f"{CANARY}\0"}, "prompt"),
    "prompt a byte too long": ({"prompt": CANARY + "x" * 30}, "prompt"),
    "prompt too long in bytes only": ({"prompt": "é" * 21}, "prompt"),
    "prompt not text": ({"prompt": [CANARY]}, "prompt"),
    "prompt not unicode": ({"prompt": "\ud800"}, "prompt"),
    "two prompts": ({"prompt": CANARY, "prompt_ids": [1]}, "prompt"),
    "no ids": ({"prompt_ids": []}, "prompt_ids"),
    "an id too many": ({"prompt_ids": [1] * 11}, "prompt_ids"),
    "negative id": ({"prompt_ids": [1, -1]}, "prompt_ids.1"),
    "id too large": ({"prompt_ids": [2**31]}, "prompt_ids.0"),
    "id a bool": ({"prompt_ids": [True]}, "prompt_ids.0"),
    "id a float": ({"prompt_ids": [1.0]}, "prompt_ids.0"),
    "version two": ({"prompt": "x", "v": 2}, "v"),
    "unknown field": ({"prompt": "x", "colour": 3}, "colour"),
    "a sampling field on top": ({"prompt": "x", "temperature": 3}, "temperature"),
    "max_tokens twice": ({"prompt": "x", "max_tokens": 3, "sampling": {"max_tokens": 3}}, "max_tokens"),
    "max_tokens too low": ({"prompt": "x", "max_tokens": 0}, "sampling.max_tokens"),
    "timeout zero": ({"prompt": "x", "timeout_s": 0}, "timeout_s"),
    "timeout not a number": ({"prompt": "x", "timeout_s": nan}, "timeout_s"),
    "timeout and deadline": ({"prompt": "x", "timeout_s": 3, "deadline_ms": 2**41}, "timeout_s"),
    "a field named by text": ({"prompt": "x", f"{CANARY} !": 3}, "?"),
    "model a path": ({"prompt": "x", "model": f"../{CANARY}"}, "model"),
    "empty model": ({"prompt": "x", "model": ""}, "model"),
    "foreign tenant": ({"prompt": "x", "tenant": CANARY}, "tenant"),
    "deadline zero": ({"prompt": "x", "deadline_ms": 0}, "deadline_ms"),
    "deadline a text": ({"prompt": "x", "deadline_ms": CANARY}, "deadline_ms"),
    "not before zero": ({"prompt": "x", "not_before": 0}, "not_before"),
    "not before a text": ({"prompt": "x", "not_before": CANARY}, "not_before"),
    "due at its deadline": ({"prompt": "x", "deadline_ms": 5, "not_before": 5}, "not_before"),
    "priority too low": ({"prompt": "x", "priority": -11}, "priority"),
    "priority too high": ({"prompt": "x", "priority": 11}, "priority"),
    "priority a float": ({"prompt": "x", "priority": 1.0}, "priority"),
    "priority a bool": ({"prompt": "x", "priority": True}, "priority"),
    "webhook too long": ({"prompt": "x", "webhook": "https://a/".ljust(2049, "x")}, "webhook"),
    "webhook of another kind": ({"prompt": "x", "webhook": f"ftp://{CANARY}/"}, "webhook"),
    "webhook a path": ({"prompt": "x", "webhook": f"/{CANARY}"}, "webhook"),
    "webhook with a user": ({"prompt": "x", "webhook": f"https://{CANARY}@example.com/"}, "webhook"),
    "webhook with a fragment": ({"prompt": "x", "webhook": f"https://example.com/#{CANARY}"}, "webhook"),
    "webhook with a space": ({"prompt": "x", "webhook": f"https://example.com/ {CANARY}"}, "webhook"),
    "webhook without a host": ({"prompt": "x", "webhook": "https:///hook"}, "webhook"),
    "webhook with a wrong host": ({"prompt": "x", "webhook": "https://a\\b/"}, "webhook"),
    "webhook at half an address": ({"prompt": "x", "webhook": "https://[::1/"}, "webhook"),
    "webhook at port 0": ({"prompt": "x", "webhook": "https://example.com:0/"}, "webhook"),
    "webhook at a port too high": ({"prompt": "x", "webhook": "https://example.com:65536/"}, "webhook"),
    "webhook a number": ({"prompt": "x", "webhook": 1}, "webhook"),
    "secret without a webhook": ({"prompt": "x", "webhook_secret": SECRET}, "webhook_secret"),
    "secret without its beginning": (secret(SECRET[6:]), "webhook_secret"),
    "secret of other characters": (secret(f"whsec_{CANARY}{'!' * 32}"), "webhook_secret"),
    "secret too short": (secret("whsec_" + "A" * 28), "webhook_secret"),
    "secret too long": (secret("whsec_" + "A" * 88), "webhook_secret"),
    "secret much too long": (secret("whsec_" + "A" * 1000), "webhook_secret"),
    "secret a number": (secret(1), "webhook_secret"),
    "negative retries": ({"prompt": "x", "retries": -1}, "retries"),
    "too many retries": ({"prompt": "x", "retries": 21}, "retries"),
    "half a retry": ({"prompt": "x", "retries": 0.5}, "retries"),
    "negative backoff": ({"prompt": "x", "retries": 1, "retry_backoff_s": -1}, "retry_backoff_s"),
    "backoff too long": ({"prompt": "x", "retries": 1, "retry_backoff_s": 3601}, "retry_backoff_s"),
    "negative flush": ({"prompt": "x", "flush_ms": -1}, "flush_ms"),
    "flush too long": ({"prompt": "x", "flush_ms": 60_001}, "flush_ms"),
    "metadata not text": ({"prompt": "x", "metadata": {CANARY: 1}}, "metadata"),
    "metadata key too long": ({"prompt": "x", "metadata": {CANARY * 9: ""}}, "metadata"),
    "metadata value too long": ({"prompt": "x", "metadata": {"k": CANARY * 50}}, "metadata"),
    "too much metadata": ({"prompt": "x", "metadata": {str(n): "" for n in range(17)}}, "metadata"),
    "no tokens": (sampling(max_tokens=0), "sampling.max_tokens"),
    "a token too many": (sampling(max_tokens=101), "sampling.max_tokens"),
    "tokens a bool": (sampling(max_tokens=True), "sampling.max_tokens"),
    "tokens a text": (sampling(max_tokens=CANARY), "sampling.max_tokens"),
    "cold": (sampling(temperature=-0.1), "sampling.temperature"),
    "too hot": (sampling(temperature=2.01), "sampling.temperature"),
    "temperature nan": (sampling(temperature=nan), "sampling.temperature"),
    "temperature infinite": (sampling(temperature=inf), "sampling.temperature"),
    "temperature a bool": (sampling(temperature=True), "sampling.temperature"),
    "negative top_k": (sampling(top_k=-1), "sampling.top_k"),
    "top_k a float": (sampling(top_k=1.5), "sampling.top_k"),
    "top_p zero": (sampling(top_p=0.0), "sampling.top_p"),
    "top_p too large": (sampling(top_p=1.1), "sampling.top_p"),
    "top_p nan": (sampling(top_p=nan), "sampling.top_p"),
    "seed of 65 bits": (sampling(seed=-(2**63) - 1), "sampling.seed"),
    "seed too large": (sampling(seed=2**63), "sampling.seed"),
    "seed a bool": (sampling(seed=False), "sampling.seed"),
    "stop a text": (sampling(stop=CANARY), "sampling.stop"),
    "empty stop": (sampling(stop=["x", ""]), "sampling.stop.1"),
    "stop a byte too long": (sampling(stop=[CANARY + "x" * 118]), "sampling.stop"),
    "stop too long in bytes only": (sampling(stop=["é" * 65]), "sampling.stop"),
    "a stop too many": (sampling(stop=["x"] * 17), "sampling.stop"),
    "no messages": ({"messages": []}, "messages"),
    "a role of its own": ({"messages": [{"role": CANARY, "content": "x"}]}, "messages.0.role"),
    "content not text": ({"messages": [{"role": "user", "content": [CANARY]}]}, "messages.0.content"),
    "messages too long": ({"messages": [{"role": "user", "content": CANARY * 9}]}, "messages"),
    "message with NUL": ({"messages": [{"role": "user", "content": f"{CANARY}\0"}]}, "messages.0.content"),
    "repetition penalty zero": (sampling(repetition_penalty=0), "sampling.repetition_penalty"),
    "presence penalty too high": (sampling(presence_penalty=2.1), "sampling.presence_penalty"),
    "frequency penalty too low": (sampling(frequency_penalty=-2.1), "sampling.frequency_penalty"),
    "repeat_last_n too low": (sampling(repeat_last_n=-2), "sampling.repeat_last_n"),
    "top_n_sigma below zero": (sampling(top_n_sigma=-1), "sampling.top_n_sigma"),
    "min_p above one": (sampling(min_p=1.01), "sampling.min_p"),
    "bias too high": (sampling(logit_bias={"3": 101}), "sampling.logit_bias.3"),
    "bias of no id": (sampling(logit_bias={"-3": 1}), "sampling.logit_bias.?.?"),
    "more tokens than allowed": (sampling(min_tokens=101, max_tokens=100), "sampling"),
    "stop id negative": (sampling(stop_token_ids=[-1]), "sampling.stop_token_ids.0"),
    "a logprob too many": (sampling(logprobs=True, top_logprobs=21), "sampling.top_logprobs"),
    "alternatives to nothing": (sampling(top_logprobs=2), "sampling"),
    "sampling not an object": ({"prompt": "x", "sampling": CANARY}, "sampling"),
}

RESERVED: dict[str, dict[str, Any]] = {
    "adapter": {"prompt": "x", "adapter": CANARY},
}


def refused(data: Any) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        GenerationJob.parse(data, SETTINGS)
    return caught.value


@pytest.mark.parametrize("case", GOOD)
def test_what_is_on_the_border_is_accepted_and_survives_its_record(case: str) -> None:
    job = GenerationJob.parse(GOOD[case], SETTINGS)
    assert GenerationJob.parse(job.to_json(), SETTINGS) == job
    assert GenerationJob.parse(job, SETTINGS) == job


@pytest.mark.parametrize("case", BAD)
def test_what_is_beyond_it_is_refused_by_name_and_not_repeated(case: str) -> None:
    fields, name = BAD[case]
    error = refused(fields)
    assert [entry.field for entry in error.fields] == [name]
    assert CANARY not in str(error)


@pytest.mark.parametrize("name", RESERVED)
def test_a_coming_feature_is_refused_by_name(name: str) -> None:
    error = refused(RESERVED[name])
    assert FieldError(name, "not supported by this version") in error.fields
    assert CANARY not in str(error)


def test_every_wrong_field_is_named_at_once() -> None:
    error = refused(
        {"n": 2, "flush_ms": -1, "model": "", "sampling": {"temperature": 9, "max_tokens": 101, "top_p": 0}}
    )
    assert {entry.field for entry in error.fields} == {
        *("prompt", "n", "flush_ms", "model"),
        *("sampling.temperature", "sampling.max_tokens", "sampling.top_p"),
    }


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"prompt": "x" * 41}, ("40", "41")),
        ({"prompt": "x", "priority": 12}, ("10", "12")),
        (sampling(max_tokens=101), ("100", "101")),
        (sampling(temperature=2.5), ("2", "2.5")),
        (sampling(stop=["x" * 129]), ("128", "129")),
        (sampling(stop=["x"] * 17), ("16", "17")),
        ({"prompt": "x", "metadata": {"k": "v" * 513}}, ("512", "513")),
    ],
)
def test_an_error_names_the_limit_and_the_value(fields: dict[str, Any], numbers: tuple[str, str]) -> None:
    (entry,) = refused(fields).fields
    assert all(number in entry.message for number in numbers)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", b"\xff", "[" * 100_000, '{"prompt": NaN}'])
def test_what_is_no_job_at_all_is_refused(text: str | bytes) -> None:
    assert refused(text).fields


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from([*GenerationJob.model_fields, "n", "logprobs"])


@pytest.mark.long
@settings(max_examples=25)
@given(st.dictionaries(FIELDS, JSON), st.dictionaries(st.sampled_from([*SamplingParams.model_fields]), JSON))
def test_nothing_but_an_invalid_job_is_raised(fields: dict[str, Any], params: dict[str, Any]) -> None:
    with suppress(InvalidJob):
        job = GenerationJob.parse({**fields, "sampling": params}, SETTINGS)
        assert GenerationJob.parse(job.to_json(), SETTINGS) == job


def test_a_direct_construction_does_not_show_its_input_either() -> None:
    with pytest.raises(ValueError, match="prompt") as caught:
        GenerationJob(prompt=CANARY, prompt_ids=(1,))
    assert CANARY not in str(caught.value)


def test_an_absent_max_tokens_keeps_within_the_limit() -> None:
    assert GenerationJob.parse({"prompt": "x"}, SETTINGS).sampling.max_tokens == 100
    assert GenerationJob.parse({"prompt": "x", "sampling": {"top_k": 1}}, SETTINGS).sampling.max_tokens == 100
    assert GenerationJob.parse({"prompt": "x"}, Settings()).sampling.max_tokens == 256


def test_an_absent_tenant_is_that_of_the_process() -> None:
    own = Settings(tenant="acme")
    assert GenerationJob.parse({"prompt": "x"}, own).tenant == "acme"
    assert GenerationJob.parse(GenerationJob(prompt="x"), own).tenant == "acme"
    with pytest.raises(InvalidJob, match="tenant"):
        GenerationJob.parse({"prompt": "x", "tenant": "default"}, own)


def test_equal_jobs_give_equal_records() -> None:
    one = GenerationJob.parse({"prompt": "x", "sampling": {"seed": 1}}, SETTINGS)
    two = GenerationJob.parse({"sampling": {"seed": 1, "top_k": 0}, "prompt": "x", "v": 1}, SETTINGS)
    assert one.to_json() == two.to_json()


@pytest.mark.parametrize("given", [SECRET, "whsec_" + "A" * 32, f"whsec_{'A' * 86}=="])
def test_a_secret_is_in_no_text_of_the_job(given: str) -> None:
    job = GenerationJob.parse(secret(given), SETTINGS)
    assert GenerationJob.parse(job, SETTINGS).webhook_secret == given
    assert not [text for text in (repr(job), str(job), job.to_json()) if given in text]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "webhook_secret: must begin with whsec_"),
        ("whsec_canary", "webhook_secret: must be Base64 after whsec_"),
        (
            "whsec_MfKQ9r8GKYqr",
            "webhook_secret: must be the Base64 of 24 to 64 bytes after whsec_, got that of 9",
        ),
    ],
)
def test_a_wrong_secret_is_told_what_is_right_and_how_to_make_one(given: str, told: str) -> None:
    error = str(refused(secret(given)))
    assert told in error
    assert "openssl rand -base64 32" in error
    assert given.removeprefix("whsec_") not in error.replace("whsec_, got", "")


def test_the_order_of_notes_and_biases_makes_no_other_job() -> None:
    """Many a language and database has no order in its maps: the second try may come in another one."""
    notes, biases = {"a": "1", "b": "2"}, {"7": 1.0, "30": -1.0}
    one, two = (
        GenerationJob.parse(
            {
                "prompt": "x",
                "metadata": dict(order(notes.items())),
                "sampling": {"logit_bias": dict(order(biases.items()))},
            },
            SETTINGS,
        )
        for order in (list, reversed)
    )
    assert one == two
    assert one.to_json() == two.to_json()


def test_the_seed_of_a_job_that_names_none_is_known_to_other_languages() -> None:
    # printf 'job-1' | sha256sum | cut -c1-8
    assert seed_of("job-1") == 0x026AB639


@pytest.mark.parametrize("text", ["a", "0-9_.:Z", "x" * 128])
def test_job_ids(text: str) -> None:
    assert is_job_id(text)


@pytest.mark.parametrize("text", ["", "x" * 129, "a b", "a}", "a\n", "é", 'a"', "south@a", None, 1])
def test_what_cannot_name_a_job(text: object) -> None:
    assert not is_job_id(text)


def test_a_job_that_is_due_after_its_deadline_is_refused_with_both_times() -> None:
    error = refused({"prompt": "x", "deadline_ms": 1000, "not_before": 2000})
    assert str(error) == "not_before: must be before deadline_ms, 1000, got 2000"


def test_max_tokens_on_top_is_the_same_job() -> None:
    inside = GenerationJob.parse({"prompt": "x", "sampling": {"top_k": 3, "max_tokens": 7}}, SETTINGS)
    for fields in (
        {"prompt": "x", "sampling": {"top_k": 3}, "max_tokens": 7},
        {"prompt": "x", "sampling": SamplingParams(top_k=3), "max_tokens": 7},
    ):
        assert GenerationJob.parse(fields, SETTINGS).to_json() == inside.to_json()


def test_another_field_of_sampling_on_top_is_told_its_place() -> None:
    error = refused({"prompt": "x", "temperature": 0.5})
    assert str(error) == "temperature: unknown field. Fix: put it into sampling"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"messages": "x"}, "messages: input should be a valid list"),
        (sampling(stop="."), "sampling.stop: input should be a valid list"),
        (sampling(stop=7), "sampling.stop: input should be a valid list, got 7"),
    ],
)
def test_what_must_be_a_list_is_told_in_the_words_of_json(fields: dict[str, Any], told: str) -> None:
    assert str(refused(fields)) == told


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"promt": "x", "prompt": "x"}, "promt: unknown field. Did you mean prompt?"),
        ({"prompt": "x", "timeout": 3}, "timeout: unknown field. Did you mean timeout_s?"),
        ({"prompt": "x", "max_token": 3}, "max_token: unknown field. Did you mean sampling.max_tokens?"),
        (sampling(max_token=3), "sampling.max_token: unknown field. Did you mean max_tokens?"),
        (sampling(max_new_tokens=3), "sampling.max_new_tokens: unknown field. Did you mean max_tokens?"),
        (sampling(topK=3), "sampling.topK: unknown field. Did you mean top_k?"),
        (sampling(priority=3), "sampling.priority: unknown field. Fix: put it beside sampling"),
        (sampling(colour=3), "sampling.colour: unknown field"),
        (
            {"messages": [{"role": "user", "contents": "x"}]},
            "messages.0.contents: unknown field. Did you mean content?",
        ),
        (sampling(**{f"{CANARY} max_tokens": 3}), "sampling.?: unknown field"),
    ],
)
def test_a_mistyped_field_is_told_what_was_meant(fields: dict[str, Any], told: str) -> None:
    assert str(refused(fields)) == told


def test_a_deadline_in_1970_is_taken_for_a_span() -> None:
    with pytest.raises(InvalidJob, match=r"deadline_ms: is a time in 1970, got 5000: .* Fix: timeout_s"):
        GenerationJob.parse({"prompt": "x", "deadline_ms": 5000}, SETTINGS).check_deadline()
    GenerationJob.parse({"prompt": "x", "deadline_ms": 1_700_000_000_000}, SETTINGS).check_deadline()


def test_a_timeout_counts_from_when_the_job_is_due() -> None:
    assert GenerationJob(prompt="x", timeout_s=0.5).ends_by(1000) == 1500
    assert GenerationJob(prompt="x", deadline_ms=7).ends_by(1000) == 7
    assert GenerationJob(prompt="x").ends_by(1000) is None


def test_tokens_are_estimated_from_prompt_ids_or_bytes_and_all_outputs() -> None:
    ids = GenerationJob(prompt_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=10))
    text = GenerationJob(prompt="é" * 5, sampling=SamplingParams(max_tokens=10, n=4))
    turns = (ChatMessage(role="system", content="abcd"), ChatMessage(role="user", content="efgh"))
    chat = GenerationJob(messages=turns, sampling=SamplingParams(max_tokens=1))
    assert [job.estimated_tokens for job in (ids, text, chat)] == [13, 43, 3]
