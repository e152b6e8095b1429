"""Each `docker compose` line of the documents does what they say of it."""

import pytest

from tests.compose_model import GPU, MAIN, SECURE, ComposeCommand, documented, project, services_of

LINES = list(dict.fromkeys(documented()))
EACH = pytest.mark.parametrize("command", LINES, ids=lambda one: one.line)

#: What the documents say that is up after each `up`, by the files and the profiles that it names.
STARTED = {
    ((MAIN,), ()): {"redis", "worker"},
    ((MAIN,), ("gateway",)): {"redis", "worker", "gateway"},
    ((MAIN,), ("two-models",)): {"redis", "worker", "second-worker"},
    ((MAIN,), ("llama-server",)): {"redis", "worker", "llama-server", "engine-worker"},
    ((MAIN,), ("monitoring",)): {"redis", "worker", "prometheus", "grafana"},
    ((MAIN, GPU), ()): {"redis", "worker"},
    ((MAIN, SECURE), ()): {"redis", "worker"},
}
UPS = [one for one in LINES if one.words[:1] == ("up",)]


def test_there_are_lines() -> None:
    assert {one.words[0] for one in LINES} >= {"up", "down", "run", "ps", "logs"}
    assert {(one.files, one.profiles) for one in UPS} == STARTED.keys()


@EACH
def test_a_line_names_files_and_profiles_that_are_there(command: ComposeCommand) -> None:
    services = project(*command.files)["services"]
    profiles = {profile for one in services.values() for profile in one.get("profiles", [])}
    assert {*command.profiles} <= profiles | {"*"}


@EACH
def test_a_line_names_services_that_are_there(command: ComposeCommand) -> None:
    what, *words = command.words
    named = [word for word in words if not word.startswith("-")]
    if "--scale" in words:
        named = [named[0].partition("=")[0]]
    if what == "run":  # then the words for its process
        assert named
        named = named[:1]
    assert {*named} <= project(*command.files)["services"].keys()


@pytest.mark.parametrize("command", UPS, ids=lambda one: one.line)
def test_up_starts_what_is_said(command: ComposeCommand) -> None:
    assert command.services == STARTED[command.files, command.profiles]


@pytest.mark.parametrize("name", ["gateway", "two-models", "llama-server", "monitoring"])
def test_each_part_comes_to_the_workers_alone_and_beside_others(name: str) -> None:
    """Whatever is added, there is somebody who runs jobs."""
    for files in ((MAIN,), (MAIN, GPU), (MAIN, GPU, SECURE)):
        assert services_of(name, files=files) > services_of(files=files) == {"redis", "worker"}
        assert services_of(name, "gateway", files=files) == services_of(name, files=files) | {"gateway"}


DOWNS = [one for one in LINES if one.words[:1] == ("down",)]


@pytest.mark.parametrize("command", DOWNS, ids=lambda one: one.line)
def test_down_ends_what_any_up_has_started_and_keeps_the_volumes(command: ComposeCommand) -> None:
    """A container that is left keeps the network, too."""
    for up in UPS:
        assert command.services >= up.services
    assert not {"-v", "--volumes"} & {*command.words}


def test_what_a_cluster_on_gpus_starts_is_ended_without_their_file() -> None:
    for one in (GPU, SECURE):
        assert project(MAIN, one)["services"].keys() == project(MAIN)["services"].keys()
