"""The benchmark of hostile inputs knows every entry; what is over a bound is refused before it is parsed."""

import json
from typing import Any

import pytest

from benchmarks.worst_inputs import BESIDE, MAX_BODY_BYTES, ROUTE_INPUTS, SHAPES, entries, routes, shaped
from llama_herd.tasks.gateway.settings import GatewaySettings
from tests.tasks.gateway.gateway_thread import GatewayThread

#: What reads a body of JSON, by the application's table.
READING = [path for method, path in routes() if method == "POST" and "{" not in path and path != "/v1/files"]


def test_each_entry_has_its_worst_inputs() -> None:
    assert set(routes()) == set(ROUTE_INPUTS)
    assert set(entries()) == {f"{method} {path}" for method, path in routes()} | set(BESIDE)
    assert all(entries().values())


def test_each_route_that_reads_json_gets_every_shape() -> None:
    for path in READING:
        assert set(SHAPES) <= set(ROUTE_INPUTS["POST", path])


@pytest.mark.long
def test_each_shape_is_near_the_limit_and_none_is_over_it() -> None:
    assert GatewaySettings.model_fields["gateway_max_body_bytes"].default == MAX_BODY_BYTES
    sizes = {name: len(shaped(name, {"model": "tales"})) for name in SHAPES}
    assert max(sizes.values()) <= MAX_BODY_BYTES
    assert [name for name, size in sizes.items() if size < MAX_BODY_BYTES // 2] == ["as much as is counted"]


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.parametrize("path", READING)
def test_what_is_over_a_bound_is_refused_before_it_is_parsed(
    path: str, gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte more than the longest body, and more values than are counted."""
    parsed: list[int] = []
    loads = json.loads

    def seen(text: Any, **options: Any) -> Any:
        parsed.append(len(text))
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", seen)
    many = [(shaped(name, {}), 400) for name in ("objects", "names", "numbers")]
    for body, status in (*many, (b'{"x":"' + b"x" * MAX_BODY_BYTES + b'"}', 413)):
        parsed.clear()
        with gateway.send("POST", path, body) as answer:
            assert answer.status == status
            answer.read()
        assert not [size for size in parsed if size > 100_000]
