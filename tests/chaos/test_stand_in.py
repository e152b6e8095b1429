"""The model's stand-in: what it says depends on nothing but the job, so that it can be told in advance."""

from tests.chaos.harness.stand_in import FIRST_ID, NUM_IDS, StandInReference, token_id


def test_what_a_job_says_is_known_without_a_model() -> None:
    ids = StandInReference().ids("a", {"sampling": {"max_tokens": 200, "seed": 3}})
    assert ids == tuple(token_id(3, 0, position) for position in range(200))
    assert set(ids) == set(range(FIRST_ID, FIRST_ID + NUM_IDS))


def test_two_seeds_and_two_jobs_without_one_say_different_things() -> None:
    jobs = [("a", {"seed": 3}), ("a", {"seed": 4}), ("a", {}), ("b", {})]
    said = {StandInReference().ids(name, {"sampling": {"max_tokens": 20, **way}}) for name, way in jobs}
    assert len(said) == len(jobs)
