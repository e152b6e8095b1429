"""The description of the API is what the code does."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from benchmarks.stand_in import StandIn
from llama_herd.errors import InvalidJob
from llama_herd.tasks.gateway.app import ROUTES
from llama_herd.tasks.gateway.openapi import document, page
from llama_herd.tasks.gateway.routes import ERRORS, OPERATIONS
from llama_herd.tasks.openai.body_schema import body_schema
from llama_herd.tasks.openai.request_body import CHAT, ENDPOINTS, Endpoint, RequestBody
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.settings import Settings
from tests.tasks.gateway.gateway_thread import GatewayThread

DOCS = Path(__file__).parents[3] / "docs/gateway.md"
#: Routes of pages, and the description itself.
OF_PAGES = ("/", "/page/{name}", "/docs", "/openapi.json")

#: What the gateway itself reads.
OWN = {"stream", "stream_options", "priority"}


def test_every_route_is_described_and_no_other() -> None:
    routes = {
        (method.lower(), route.path) for route in ROUTES for method in route.methods or () if method != "HEAD"
    }
    described = {(one.method, path) for one in OPERATIONS for path in one.paths}
    assert routes == described | {("get", path) for path in OF_PAGES}
    told = [one.what for one in OPERATIONS]
    assert all(told)
    assert len(set(told)) == len(told)


def properties(schema: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    yield from schema.get("properties", {}).items()


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_route_stands_in_the_docs() -> None:
    text = DOCS.read_text() + DOCS.with_name("batches.md").read_text()
    told = re.findall(r"(?<![\w.])/[\w/{}]+", re.sub(r"\{\w+\}", "{}", text))
    paths = [re.sub(r"\{\w+\}", "{}", path) for one in OPERATIONS for path in one.paths]
    assert [path for path in paths if path not in told] == []


@pytest.mark.long
def test_every_status_of_an_error_stands_in_the_docs() -> None:
    told = re.findall(r"^\| ([\d, ]+) \|", DOCS.read_text(), re.MULTILINE)
    assert set(map(str, ERRORS)) <= {status for row in told for status in row.split(", ")}


def test_every_reference_leads_somewhere_and_every_field_is_described() -> None:
    schemas = document()["components"]["schemas"]
    assert references(document()) <= {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    json.dumps(document())
    fields = {(name, field): given for name in schemas for field, given in properties(schemas[name])}
    assert [one for one, given in fields.items() if not given.get("description")] == []


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_described_field_is_taken_and_another_is_not(endpoint: Endpoint) -> None:
    described = set(body_schema(endpoint)["properties"])
    every = described | set(SamplingParams.model_fields) | set(GenerationJob.model_fields)
    for name in (every | {"nonsense", "max_completion_tokens", "logit_bias"}) - OWN:
        errors = RequestBody(endpoint, {name: object()}).errors
        refused = [one for one in errors if one.message.startswith("not supported")]
        assert (name in described) == (not refused), name


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_field_s_bounds_are_the_ones_that_are_checked(endpoint: Endpoint) -> None:
    source: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "x"}]} if endpoint == CHAT else {"prompt": "x"}
    )
    for name, given in body_schema(endpoint)["properties"].items():
        bounds = [given[bound] + step for bound, step in (("minimum", -1), ("maximum", 1)) if bound in given]
        for value in bounds:
            with pytest.raises(InvalidJob):
                RequestBody(endpoint, {**source, name: value}).job(Settings())


def test_the_page_has_every_field_and_nothing_from_elsewhere() -> None:
    html = page()
    assert all(f"<code>{name}</code>" in html for name in SamplingParams.model_fields)
    assert "http" not in html.replace("https://app.example.com", "")
    assert "<script" not in html


@pytest.mark.redis
def test_streams_are_as_described(gateway: GatewayThread, stand_in: StandIn) -> None:
    asked = {"model": "tales", "stream": True}
    talk = {"messages": [{"role": "user", "content": "x"}]}
    job_id = gateway.ask("POST", "/v1/jobs", {"prompt": "x"}).json["id"]
    for found in (
        gateway.ask("POST", "/v1/completions", {**asked, "prompt": "x"}),
        gateway.ask("POST", "/v1/chat/completions", {**asked, **talk}),
        gateway.ask("POST", "/v1/responses", {**asked, "input": "x", "top_logprobs": 2}),
        gateway.ask("GET", f"/v1/responses/resp_{job_id}?stream=true"),
        gateway.ask("GET", f"/v1/jobs/{job_id}/events"),
    ):
        assert b"data: " in found.raw
