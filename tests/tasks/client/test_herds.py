"""Several herds behind one client: each job is in one of them, and is found there by its id."""

from collections.abc import Iterator
from inspect import signature

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.errors import InvalidJob, JobNotFound
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.herds import Herds
from llama_herd.tasks.protocol.job import GenerationJob

pytestmark = pytest.mark.redis


@pytest.fixture
def herds(redis_url: str) -> Iterator[Herds]:
    """Two, each with a worker of its own model."""
    with (
        EmbeddedRedis() as other,
        StandIn(redis_url, "tales"),
        StandIn(other.url, "songs"),
        Herds(
            {"north": Client(redis_url), "south": Client(other.url)},
            {"tales": "north", "songs": "south"},
        ) as herds,
    ):
        yield herds


@pytest.mark.parametrize(("model", "name"), [("tales", "north"), ("songs", "south")])
def test_a_job_goes_to_the_herd_of_its_model_and_is_found_there(herds: Herds, model: str, name: str) -> None:
    job_id = herds.submit(GenerationJob(prompt="Once", model=model))
    assert job_id.startswith(f"{name}@")
    assert herds.result(job_id, timeout_s=20).text.startswith("Once")
    assert [event.type for event in herds.stream(job_id)] == ["started", "token", "end"]
    assert herds.job(job_id).state == "done"
    herds.purge(job_id)
    with pytest.raises(JobNotFound):
        herds.result(job_id)


def test_the_same_job_may_be_submitted_again_by_either_of_its_ids(herds: Herds) -> None:
    first = herds.submit(prompt="Once", model="songs", job_id="mine")
    assert first == "south@mine"
    assert herds.submit(prompt="Once", model="songs", job_id=first) == first
    by_key = [herds.submit(prompt="Once", model="songs", idempotency_key="order 7") for _ in range(2)]
    assert by_key[0] == by_key[1]


@pytest.mark.parametrize("job_id", ["mine", "west@mine", "south@", "@mine", ""])
def test_an_id_of_no_herd_is_refused_with_the_form(herds: Herds, job_id: str) -> None:
    with pytest.raises(InvalidJob, match="<herd>@<id>, of one of the herds north, south"):
        herds.result(job_id)


def test_a_model_of_no_herd_is_refused_unless_one_takes_all_others(herds: Herds, redis_url: str) -> None:
    with pytest.raises(InvalidJob, match="must be a model that a herd has: songs, tales"):
        herds.submit(prompt="Once", model="poems")
    with pytest.raises(InvalidJob, match="model"):
        herds.submit(prompt="Once")
    with Herds({"all": Client(redis_url)}, {}, default="all") as one:
        assert one.submit(prompt="Once", model="tales").startswith("all@")


@pytest.mark.parametrize("name", ["submit", "stream", "result", "cancel", "purge", "job"])
def test_each_method_has_the_arguments_of_a_clients(name: str) -> None:
    own, clients = signature(getattr(Herds, name)), signature(getattr(Client, name))
    assert own.parameters == clients.parameters


def test_each_herd_has_its_state(herds: Herds) -> None:
    states = herds.status()
    assert {name: [one.model for one in state.workers] for name, state in states.items()} == {
        "north": ["tales"],
        "south": ["songs"],
    }


@pytest.mark.parametrize(
    ("names", "models", "complaint"),
    [(["a@b"], {}, "have no @"), ([""], {}, "must not be empty"), (["a"], {"m": "b"}, "no client is given")],
)
def test_a_table_that_names_no_herd_is_refused(
    redis_url: str, names: list[str], models: dict[str, str], complaint: str
) -> None:
    with Client(redis_url) as client, pytest.raises(ValueError, match=complaint):
        Herds(dict.fromkeys(names, client), models)
