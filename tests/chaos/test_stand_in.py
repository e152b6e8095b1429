"""The model's stand-in: what it says depends on nothing but the job, so that it can be told in advance."""

from tests.chaos.harness.stand_in import StandInReference


def test_each_word_is_a_token_and_two_seeds_say_different_things() -> None:
    jobs = [("a", {"seed": 3}), ("a", {"seed": 4}), ("a", {}), ("b", {})]
    said = [StandInReference().ids(name, {"sampling": {"max_tokens": 20, **way}}) for name, way in jobs]
    assert {len(ids) for ids in said} == {20}
    assert len(set(said)) == len(jobs)
