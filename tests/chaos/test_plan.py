"""Which faults a run does, how often and in which order."""

from pathlib import Path

import pytest

from llama_herd.errors import BadInput
from tests.chaos.harness.faults.catalogue import FAULTS
from tests.chaos.harness.plan import SCHEDULES, ChaosPlan, planned_strikes


def plan(strikes: dict[str, int], **changes: float) -> ChaosPlan:
    return ChaosPlan(strikes, num_jobs=1, max_tokens=10, seed=int(changes.get("seed", 0)), minutes=0)


def test_without_names_each_fault_comes_once() -> None:
    assert planned_strikes([], "") == dict.fromkeys(FAULTS, 1)


def test_a_name_may_bring_its_count() -> None:
    assert planned_strikes(["kill=3", "freeze", "kill"], "") == {"kill": 4, "freeze": 1}


@pytest.mark.parametrize(
    ("faults", "schedule", "complaint"),
    [
        (["kil"], "", "no such fault: kil. `python -m tests.chaos.harness list` shows all"),
        (["kill=many"], "", "kill=many: a fault's name may be followed by =COUNT"),
        (["kill=0"], "", "kill=0: a fault's name may be followed by =COUNT from 1 to 999999"),
        (["kill=1000000"], "", "kill=1000000: a fault's name"),
        ([], "week", "--schedule week: must be one of half-hour, hours"),
        (["kill"], "hours", "leave out one of them"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(faults: list[str], schedule: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        planned_strikes(faults, schedule)


def test_every_schedule_holds_every_fault() -> None:
    for path in SCHEDULES.glob("*.json"):
        assert planned_strikes([], path.stem).keys() == FAULTS.keys()


def test_the_page_on_chaos_names_every_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    assert [name for name in FAULTS if f"`{name}`" not in page] == []


def test_the_readme_counts_them() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"in {len(FAULTS)} ways" in readme


def test_the_order_is_a_shuffle_that_the_seed_repeats() -> None:
    strikes = {"kill": 20, "freeze": 20}
    orders = [[fault.name for fault in plan(strikes, seed=seed).order()] for seed in (1, 1, 2)]
    assert sorted(orders[0]) == sorted(orders[2]) == ["freeze"] * 20 + ["kill"] * 20
    assert orders[0] == orders[1] != orders[2]
