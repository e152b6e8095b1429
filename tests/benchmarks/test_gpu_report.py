"""Results that add up over runs, and the table that is made of them."""

from pathlib import Path

import pytest

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.report import latest, print_report, report, table_rows
from benchmarks.report import PAGE, RESULTS
from llama_herd.errors import BadInput

pytestmark = pytest.mark.long

CEILINGS = Ceilings(4.3e12, 4.5e12, 788e12, 55e9, 0.3)
STEP = Measurement("W1", "BF16, a step", OURS, "ms", (6.0, 4.0, 5.0), floor=3.0)
PEER_STEP = Measurement("W1", "BF16, a step", "peer", "ms", (10.0,))
RATE = Measurement("W3", "BF16, whole run", OURS, "tok/s", (5_000.0,), floor=12_500.0, note="engine alone")


def test_a_step_below_its_peers_and_a_rate_above_them_are_better() -> None:
    assert STEP.value == 5.0
    assert STEP.times_better_than(PEER_STEP) == 2.0
    assert RATE.times_better_than(Measurement("W3", RATE.case, "peer", "tok/s", (2_500.0,))) == 2.0


def test_floors_of_times_are_below_and_of_rates_above() -> None:
    assert STEP.percent_of_floor == pytest.approx(60)
    assert RATE.percent_of_floor == pytest.approx(40)
    assert Measurement("W7", "memory", OURS, "GB", (2.0,), floor=0.0).percent_of_floor is None


def test_the_table_has_a_row_for_each_case_and_peer() -> None:
    alone = Measurement("W4", "of a peer alone", "peer", "ms", (1.0,))
    assert list(table_rows([STEP, PEER_STEP, RATE, alone])) == [
        ("W1", "BF16, a step", "5 ms", "3 ms", "60 %", "peer", "10 ms", "2.00 x"),
        ("W3", "BF16, whole run", "5,000 tok/s", "12,500 tok/s", "40 %", "–", "–", "–"),
        ("W4", "of a peer alone", "–", "–", "–", "peer", "1 ms", "–"),
    ]


def test_runs_add_up_and_the_last_of_a_case_counts(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / name) for name in ("first", "second")]
    again = Measurement("W1", STEP.case, OURS, "ms", (4.0,), 3.0)
    for journal, measurements in zip(journals, ([STEP, RATE], [PEER_STEP, again]), strict=True):
        journal.add("run", run=journal.folder.name, commit="abc", is_rehearsed=False)
        journal.add("conditions", step="conditions", torch="2.11")
        journal.note_ceilings(CEILINGS)
        for measurement in measurements:
            journal.note("decode", measurement)
    journals[1].add("end", step="laws", outcome="signal 11", seconds=1.0)
    journals[1].add("law", step="laws", test="tests/a.py::test_b", outcome="failed", error="")
    journals[1].add("kernel", step="kernel", kernel="Q8_0", case="one", is_right=False, GB_s=3_210.0)
    assert [(m.workload, m.system, m.value) for m in latest(journals)] == [
        ("W1", OURS, 4.0),
        ("W1", "peer", 10.0),
        ("W3", OURS, 5_000.0),
    ]
    text = report(journals)
    assert "- W3, llama-herd: engine alone." in text
    assert "- Run first: torch 2.11, commit abc. copy 4.3e+03 GB/s" in text
    assert "- Not measured: laws (signal 11)." in text
    assert "- Laws: 0 of 1 hold. test_b (failed)" in text
    assert "- Kernel Q8_0: 3,210 GB/s; WRONG at one." in text


def test_lines_that_a_dying_step_has_left_are_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note("decode", STEP)
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "measurement", "work')
    journal.note("decode", RATE)
    assert journal.measurements == [STEP, RATE]


def test_the_page_shows_what_the_card_measured() -> None:
    rows = [line for line in report([Journal(RESULTS / "gpu/second")]).splitlines() if line.startswith("| W")]
    assert rows
    assert set(rows) <= set(PAGE.read_text().splitlines())


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"results\.jsonl"):
        print_report([tmp_path])
