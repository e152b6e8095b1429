"""The harness as a command: the same faults, one by one or by a schedule."""

import json

import pytest
from typer.testing import CliRunner, Result

from tests.chaos.harness.__main__ import app
from tests.chaos.harness.faults.catalogue import FAULTS


@pytest.fixture
def forked_workers() -> None:
    """Not here: its workers are those that a person gets."""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_list_names_every_fault_with_what_it_does() -> None:
    shown = invoke("list").stdout
    for fault in FAULTS.values():
        assert f"{fault.name} " in shown
        assert fault.description in shown


def test_an_unknown_fault_is_refused_before_anything_starts() -> None:
    refused = invoke("run", "earthquake")
    assert refused.exit_code == 2
    assert "earthquake" in refused.stderr


@pytest.mark.fault
@pytest.mark.timeout(200)
def test_a_run_breaks_a_herd_and_reports_that_nothing_is_lost() -> None:
    done = invoke("run", "cut", "redis-flush", "--jobs", "20", "--tokens", "60", "--json")
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert done.exit_code == 0
    assert (report["strikes"], report["lost"], report["duplicate"], report["bound"]) == (2, 0, 0, 1.0)
    assert report["jobs"] >= 20
