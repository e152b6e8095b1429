"""Replays of prompt lookup by hand, and a dry run of the benchmark."""

import pytest

from benchmarks.prompt_lookup import Pass, Replay, Text, lookup, passes
from benchmarks.shapes import BUNDLED
from benchmarks.speculation import Plan, measure, tables

pytestmark = pytest.mark.long


def test_a_draft_is_what_followed_the_last_ids_when_they_last_came_before() -> None:
    assert lookup((1, 2, 3, 4, 5, 1, 2, 3), 2) == (4, 5)
    assert lookup((7, 1, 2, 8, 9, 1, 2), 4) == (8, 9, 1, 2)
    assert lookup((1, 2, 5, 1, 2, 6, 1, 2), 1) == (6,)
    assert lookup((1, 2, 3, 4), 4) == ()


def test_a_replay_keeps_what_is_the_same_and_one_token_more() -> None:
    text = Text((1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 9, 9), num_prompt=8)
    assert list(passes(text, max_drafted=4)) == [Pass(2, 1), Pass(0, 0)]
    assert Replay.of([text], 4).tokens_per_pass == 1.5
    assert Replay.of([text], 4).true_share == 0.5


def test_a_dry_run_predicts_a_speed_up_for_every_text() -> None:
    report = measure(
        Plan(shapes=(BUNDLED,), rows=(1, 2), past_tokens=4, repeats=2, num_texts=2, max_tokens=12)
    )
    assert [run["rows"] for run in report["costs"]] == [1, 2]
    best = [run for run in report["replays"] if run["text"].startswith("random ids")]
    assert [run["true share"] for run in best] == [1.0, 1.0, 1.0]
    assert all(run["bundled, 2 rows"] > 0 for run in report["replays"])
    assert [len(table.rows) for table in tables(report)] == [2, 15]
