"""What docs/protocol.md tells other languages is so."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.ledger import keys
from llama_herd.tasks.ledger.outbox import WebhookEntry
from llama_herd.tasks.ledger.script import Script, all_scripts, kept_scripts
from llama_herd.tasks.ledger.stored_api_keys import ApiKey
from llama_herd.tasks.ledger.webhook_configs import WebhookConfig
from llama_herd.tasks.protocol.events import End, Started, Token, Vectors
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import TAG_GAP, Envelope
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.terms import MAX_NOTES
from llama_herd.worker.jobs.stream_reader import ECHO_BYTES, EVENT_BYTES, SCORE_BYTES, TOKEN_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def test_the_page_names_the_parts_of_the_scripts_that_producers_run() -> None:
    words = " ".join(PAGE.split())
    for script in kept_scripts("producers"):
        assert f"{script.files[-1].upper()} `{' '.join(script.files)}`" in words


def test_the_message_of_the_page_has_what_ours_has() -> None:
    (text,) = [
        block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "delivery_tag" in block
    ]
    shown, ours = json.loads(text), json.loads(Envelope.for_job("<id>", "herd.tales").with_tag("unique"))
    assert places(ours) - places(shown) == {"headers.argsrepr", "headers.kwargsrepr", "headers.root_id"}
    assert places(shown) <= places(ours)
    assert shown["properties"] == ours["properties"]
    assert f"`{TAG_GAP}`" in PAGE


def places(message: dict[str, Any]) -> set[str]:
    fields = {name: value if isinstance(value, dict) else {"": 0} for name, value in message.items()}
    return {f"{name}.{field}" for name, inner in fields.items() for field in inner}


def section(title: str) -> str:
    """What stands on the page below a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_page_has_a_row_for_every_key() -> None:
    kinds = "hash|stream|channel|zset|set|string|lists"
    listed = re.findall(rf"^(\S+) +(?:{kinds}) ", str(keys.__doc__), re.MULTILINE)
    named = re.findall(r"`([^`]+)`", section("Keys").replace("`…:", "`herd:<tenant>:"))
    assert len(listed) > 30
    assert [key for key in listed if key not in named] == []


def test_the_page_names_every_field_of_what_is_kept_as_json() -> None:
    named = set(re.findall(r"`(\w+)`", section("Keys")))
    kept = {one.name for kind in (ApiKey, WebhookConfig, WebhookEntry) for one in fields(kind)}
    assert kept - named == {"fingerprint", "message"}  # by which they are found


def test_the_page_has_a_row_for_every_field_that_scripts_write_into_a_record() -> None:
    source = "".join(script.plain_source for script in all_scripts())
    calls = re.findall(r"'H(?:SET|SETNX|INCRBY)', (?:(?:key\.|one\.)?job|job_key\(id\)),([^()]*)", source)
    parts = [part.strip() for call in calls for part in call.split(",")[::2]]
    written = {part.strip("'") for part in parts if part.startswith("'")}
    rows = re.findall(r"^\| (`.+?`) \|", section("The record"), re.MULTILINE)
    assert len(written) > 35
    assert written - {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set()


def test_the_page_tells_in_which_argument_submit_takes_a_field_of_a_job() -> None:
    args = [{"secret": "webhook_secret"}.get(name, name) for name in Script("submit").head.args]
    told = re.findall(r"`(\w+)`\s+\((\d+)\)", section("Enqueueing"))
    places = {name: str(place) for place, name in enumerate(args, 1) if name in GenerationJob.model_fields}
    assert dict(told) == places


def test_the_page_names_every_field_of_an_event() -> None:
    named = set(re.findall(r"[`\"]([a-z0-9_]+)[`\"]", section("Events")))
    missing = {kind: kind.model_fields.keys() - named for kind in (Started, Token, Vectors, End)}
    assert not any(missing.values()), missing


def test_the_page_names_no_script_that_is_not_there() -> None:
    named = re.findall(r"^\| ([A-Z_]+) \|", section("Scripts"), re.MULTILINE)
    assert len(named) == len(set(named)) > 20
    assert {name.lower() for name in named} <= {script.name for script in all_scripts()}


def test_the_page_names_every_field_of_a_result() -> None:
    named = set(re.findall(r"`(\w+)`", section("What Celery's clients see")))
    assert Result.model_fields.keys() - named == set()


def test_each_word_that_the_page_gives_for_an_answer_is_in_the_script() -> None:
    for name, told in re.findall(r"^\| ([A-Z_]+) \| (.*) \|$", section("Scripts"), re.MULTILINE):
        words = re.findall(r"(?:^| · (?:or )?)`(\w+)`", told)
        assert [word for word in words if f"'{word}'" not in Script(name.lower()).source] == [], name


def test_the_page_tells_what_a_job_may_cost() -> None:
    words = " ".join(section("What a job costs").split())
    assert f" {TOKEN_BYTES + EVENT_BYTES} bytes a token, {SCORE_BYTES:,} more with all scores" in words
    assert f" {ECHO_BYTES} for each byte and each token of the longest prompt" in words
    assert f"its metadata: {MAX_NOTES} notes" in words


def test_the_page_lists_every_code_of_an_error() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.*) \| (yes|no) \|$", section("Error codes"), re.MULTILINE)
    assert listed == [(code, code.meaning, "yes" if code.retriable else "no") for code in ErrorCode]
