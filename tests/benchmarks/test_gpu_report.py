"""Results that add up over runs, and the table that is made of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import report as gpu_report
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.report import SECTION, for_page, latest, print_report, report, table
from benchmarks.report import PAGE, ROOT, section
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


def test_the_table_has_a_row_for_each_case_and_a_column_for_each_format() -> None:
    alone = Measurement("W4", "BF16, of a peer alone", "peer", "ms", (1.0,))
    blocks = Measurement("W1", "Q4_0, a step", OURS, "ms", (2.0,))
    assert table([blocks, STEP, PEER_STEP, RATE, alone])[2:] == [
        "| W1 | a step | 5 ms (60 % of 3), peer 10 ms (2.00 x) | 2 ms |",
        "| W3 | whole run | 5,000 tok/s (40 % of 12,500) | – |",
        "| W4 | of a peer alone | peer 1 ms | – |",
    ]


def test_parts_of_a_case_stand_in_its_row() -> None:
    parts = [replace(STEP, part="beside 0"), replace(STEP, runs=(8.0,), floor=None, part="beside 64")]
    assert table(parts)[2:] == ["| W1 | a step | beside 0: 5 ms (60 % of 3); beside 64: 8 ms |"]


def test_runs_add_up_and_the_last_of_a_case_counts(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / name) for name in ("first", "second")]
    again = Measurement("W1", STEP.case, OURS, "ms", (4.0,), 3.0)
    for journal, measurements in zip(journals, ([STEP, RATE], [PEER_STEP, again]), strict=True):
        journal.add("run", run=journal.folder.name, commit="abc", is_rehearsed=False)
        journal.add("conditions", step="conditions", torch="2.11")
        journal.note_ceilings(CEILINGS)
        for measurement in measurements:
            journal.note("decode", measurement)
    for journal, step, outcome in (
        (journals[0], "kills", "exit code 1"),
        (journals[0], "mixed", "exit code 1"),
        (journals[1], "laws", "signal 11"),
        (journals[1], "kills", "ok"),
        (journals[1], "mixed", "skipped: 2 s left, it needs 20"),
    ):
        journal.add("end", step=step, outcome=outcome, seconds=1.0)
    journals[1].add("law", step="laws", test="tests/a.py::test_b", outcome="failed", error="")
    journals[1].add("kernel", step="kernel", kernel="Q8_0", case="one", is_right=False, GB_s=3_210.0)
    assert [(m.workload, m.system, m.value) for m in latest(journals)] == [
        ("W1", OURS, 4.0),
        ("W1", "peer", 10.0),
        ("W3", OURS, 5_000.0),
    ]
    text = report(journals)
    assert "- W3, llama-herd: engine alone." in text
    assert "- first at commit abc (copy 4,300 GB/s" in text
    assert "- Not measured: mixed (skipped: 2 s left, it needs 20); laws (signal 11)." in text
    assert "- Laws: 0 of 1 hold. test_b (failed)" in text
    assert "- Kernel Q8_0: 3,210 GB/s; WRONG at one." in text


def test_lines_that_a_dying_step_has_left_are_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note("decode", STEP)
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "measurement", "work')
    journal.note("decode", RATE)
    assert journal.measurements == [STEP, RATE]


def test_the_page_shows_the_report_of_the_folders_that_it_names() -> None:
    text = section(PAGE.read_text(), SECTION)
    assert text is not None
    named = re.search(r"`python -m benchmarks\.gpu report (.+) --write`", text)
    assert named is not None
    assert text == for_page([Journal(ROOT / folder) for folder in named[1].split()])


def test_a_report_is_written_between_the_marks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, journal = tmp_path / "page.md", Journal(tmp_path / "first")
    monkeypatch.setattr(gpu_report, "PAGE", page)
    page.write_text(f"before\n<!-- {SECTION} -->\nold\n<!-- /{SECTION} -->\nafter\n")
    journal.note("decode", STEP)
    journal.note("decode", replace(STEP, system=f"{OURS}, no graphs"))
    journal.note("peer", replace(PEER_STEP, system="peer, one by one"))
    journal.note("kills", replace(STEP, workload="kills", note="0 bad"))
    print_report([journal.folder], is_written=False)
    assert "old" in page.read_text()
    print_report([journal.folder], is_written=True)
    written = page.read_text()
    assert re.fullmatch(r"before\n<!.+<!-- /.+ -->\nafter\n", written, re.DOTALL)
    assert "old" not in written
    assert "| W1 | a step | 5 ms (60 % of 3), peer, one by one 10 ms (2.00 x) |" in written
    assert "--write`: kills, llama-herd: 0 bad." in written
    assert "no graphs" not in written


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"results\.jsonl"):
        print_report([tmp_path], is_written=False)
