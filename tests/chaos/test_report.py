"""What a run says of itself."""

from tests.chaos.harness.report import Blow, ChaosReport, ResourceSample, Trend, evenly_spread
from tests.chaos.harness.verdict import Verdict, Violation

BLOWS = (
    Blow("kill", 1.0, 2, (3.0, 4.0)),
    Blow("redis-flush", 9.0, 0, ()),
    Blow("kill", 12.0, 1, (5.0,)),
)

HELD = [ResourceSample(at_s, 300.0 + at_s, 40, 20, 5.0, 30, 3.0) for at_s in (1.0, 9.0, 5.0)]


def report(*violations: Violation) -> ChaosReport:
    verdict = Verdict(7, 70, 2, 7, violations)
    return ChaosReport(20.0, BLOWS, HELD, [], verdict)


def test_recovery_is_told_by_fault() -> None:
    kill, flush = report().fault_summaries
    assert (kill.strikes, kill.met, kill.p50_s, kill.p99_s, kill.max_s) == (2, 3, 4.0, 5.0, 5.0)
    assert (flush.strikes, flush.met, flush.p50_s) == (1, 0, None)


def test_without_a_failure_among_n_strikes_the_bound_is_3_over_n() -> None:
    assert report().to_dict()["bound"] == 1.0
    assert report().exit_code == 0


def test_a_broken_law_is_counted_named_and_told_by_the_exit_code() -> None:
    lost = Violation("lost", "a", "no final event after 3 others")
    twice = Violation("dense", "b", "seq is not dense")
    found = report(lost, twice, Violation("tokens join", "b", "token 3 is there twice"))
    told = found.to_dict()
    assert (told["lost"], told["duplicate"], told["bound"]) == (1, 1, None)
    assert told["violations"][0] == "lost: job a: no final event after 3 others"
    assert found.exit_code == 1


def test_jobs_that_were_given_up_for_the_deaths_of_others_are_counted() -> None:
    assert ChaosReport(1.0, BLOWS, [], [], Verdict(7, 70, 2, 7, (), num_blamed=2)).to_dict()["blamed"] == 2


def test_a_run_that_was_cut_short_before_anything_happened_has_a_report_and_does_not_pass() -> None:
    found = ChaosReport(1.0, [], [], [], Verdict(0, 0, 0, 0, ()), cut_short="KeyboardInterrupt")
    assert found.exit_code == 1
    assert found.to_dict()["cut_short"] == "KeyboardInterrupt"
    assert found.trends == []


def test_jobs_that_nobody_has_looked_at_do_not_pass() -> None:
    unknown = ChaosReport(1.0, BLOWS, HELD, [], Verdict.unknown(7))
    assert unknown.to_dict()["violations"] == ["checked: 7 jobs were not checked"]
    assert unknown.exit_code == 1


def test_what_was_held_is_told_from_first_to_last() -> None:
    found = report()
    assert found.trends[0] == Trend("largest worker: MiB", 301.0, 305.0, 305.0, 309.0)
    assert found.to_dict()["trends"][0]["most"] == 309.0


def test_of_a_long_run_so_much_is_told_as_a_plot_shows() -> None:
    many = [ResourceSample(float(at_s), 300.0, 40, 20, 5.0, 30, 3.0) for at_s in range(1001)]
    told = [held.at_s for held in evenly_spread(many, 5)]
    assert told == [0, 250, 500, 750, 1000]
    assert evenly_spread(many[:5], 5) == many[:5]
