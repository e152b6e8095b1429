"""A route that others have is answered with what to use instead."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from starlette.routing import Match

from llama_herd.tasks.gateway.absent_routes import ABSENT_ROUTES, AbsentRoutes, instead_of
from llama_herd.tasks.gateway.app import ROUTES
from tests.tasks.gateway.gateway_thread import GatewayThread

PAGE = Path(__file__).parents[3] / "docs" / "openai.md"


def is_ours(path: str) -> bool:
    scope = {"type": "http", "method": "GET", "path": path}
    return any(route.matches(scope)[0] is not Match.NONE for route in ROUTES)


def paths_of_openais_client() -> set[str]:
    """Where its code sends requests; whatever is a name in a path is `x`."""
    spec = find_spec("openai.resources")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    calls = re.compile(r"""(?:path_template|self\._\w+)\(\s*f?"(/[^"?]+)""")
    found = {path for file in Path(folder).rglob("*.py") for path in calls.findall(file.read_text())}
    assert len(found) > 100
    return {re.sub(r"{\w+}", "x", path) for path in found}


def test_every_route_of_openais_client_is_ours_or_has_an_answer() -> None:
    paths = {path if path.startswith("/v1/") else f"/v1{path}" for path in paths_of_openais_client()}
    unknown = {path for path in paths if not is_ours(path) and instead_of(path) is None}
    # Parts of what we have: a stored chat.
    assert unknown == {"/v1/chat/completions/x", "/v1/chat/completions/x/messages"}


@pytest.mark.redis
def test_each_is_refused_with_what_to_use(gateway: GatewayThread) -> None:
    for one in ABSENT_ROUTES:
        for path in (part + below for part in one.paths for below in ("", "/x")):
            for method in ("GET", "POST"):
                found = gateway.ask(method, path)
                assert (found.status, found.error["code"]) == (404, "not_found"), path
                assert found.error["message"] == f"there is no such route: {one.instead}"


def test_none_of_them_is_a_route_and_no_path_comes_twice() -> None:
    paths = [path for one in ABSENT_ROUTES for path in one.paths]
    assert [path for path in paths if is_ours(path)] == []
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/v1/responses2", "/apis", "/", "", "//v1/responses"])
def test_of_others_nothing_is_said(path: str) -> None:
    assert instead_of(path) is None


@pytest.mark.parametrize("one", ABSENT_ROUTES, ids=lambda one: one.paths[0])
def test_what_a_sentence_names_is_there(one: AbsentRoutes) -> None:
    for path in re.findall(r"(?:GET|POST) (/\S+?)[,.;]?(?:\s|$)", one.instead):
        assert is_ours(path), path
    for page in re.findall(r"docs/\w+\.md", one.instead):
        assert (PAGE.parents[1] / page).is_file()


def test_the_page_has_them_all() -> None:
    section = PAGE.read_text().partition("## Routes that are not here\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| (.+) \|$", section, re.M)
    told = [(tuple(re.findall(r"`(.+?)`", paths)), instead) for paths, instead in rows]
    assert told == [(one.paths, one.instead) for one in ABSENT_ROUTES]
