"""The engine in front of a server, without Redis: who goes first, and how soon a row ends."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any

import pytest
from structlog.testing import capture_logs

from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import Admitted, Finished, Lost, NewTokens, SequenceInfo, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.foreign.model import ForeignModel
from llama_herd.worker.foreign.vllm import Vllm
from llama_herd.worker.grammars.served_forms import ServedConstraint
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.foreign_server import ANSWER
from tests.stand_in import StandIn
from tests.worker.foreign.conftest import NewServer


class Desk:
    """An engine in front of a server, and all that it has told."""

    def __init__(self, kind: str, server: StandIn, slots: int) -> None:
        fields = {"engine": kind, "engine_url": server.url, "model": BUNDLED_MODEL, "slots": slots}
        settings = WorkerSettings.read(**fields).as_foreign()
        self.server, self.model = server, ForeignModel.load(settings)
        self.told: list[StepOutput] = []
        self._lock = Lock()
        self.engine = self.model.job_engine(settings, self.take)
        self.engine.start()

    def take(self, outputs: list[StepOutput]) -> None:
        with self._lock:
            self.told += outputs

    def sequence(
        self, prompt: str, priority: int = 0, form: dict[str, Any] | None = None, **sampling: Any
    ) -> Sequence:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **sampling})
        job = GenerationJob(prompt=prompt, priority=priority, structured_outputs=form, sampling=params)
        (made,) = self.model.maker.sequences(prompt, job, now_ms=0)
        return made

    def of(self, info: SequenceInfo) -> list[StepOutput]:
        with self._lock:
            return [output for output in self.told if output.sequence is info]

    def ids(self, info: SequenceInfo) -> list[int]:
        drawn = [token for one in self.of(info) if isinstance(one, NewTokens) for token in one.tokens]
        return [token.token_id for token in drawn]

    def text(self, info: SequenceInfo) -> str:
        return "".join(output.text for output in self.of(info) if isinstance(output, NewTokens))

    def has_ended(self, info: SequenceInfo) -> bool:
        return any(isinstance(output, Finished | Lost) for output in self.of(info))

    def end(self, info: SequenceInfo) -> Finished:
        """What is told last of a sequence."""
        end = self.of(info)[-1]
        assert isinstance(end, Finished)
        return end


@pytest.fixture
def desk(kind: str, new_server: NewServer) -> Iterator[Desk]:
    made = Desk(kind, new_server(step_s=0.01), slots=2)
    yield made
    assert made.engine.is_alive()
    made.engine.stop()
    made.model.close()
    assert not made.engine.is_alive()


def test_the_most_urgent_goes_first_and_no_more_than_the_slots_at_a_time(desk: Desk) -> None:
    priorities = (0, 0, -1, 0, 5)
    sequences = [desk.sequence(f"Tale {number}", one) for number, one in enumerate(priorities)]
    desk.engine.submit(*sequences)
    wait_until(lambda: all(desk.has_ended(one.info) for one in sequences), "all end")
    begun = [output.sequence.job_id for output in desk.told if isinstance(output, Admitted)]
    assert begun[0] == "Tale 4"
    assert begun[-1] == "Tale 2"
    assert desk.engine.stats.num_running == desk.engine.num_waiting == 0


def test_nothing_is_asked_before_a_start_is_on_record(desk: Desk) -> None:
    sequence = desk.sequence("A tale")
    sequence.is_confirmed = False
    desk.engine.submit(sequence)
    wait_until(lambda: desk.of(sequence.info), "it has started")
    assert not desk.server.prompts
    desk.engine.confirm([sequence.info])
    wait_until(lambda: desk.has_ended(sequence.info), "it ends")
    assert len(desk.ids(sequence.info)) == 12


def test_an_aborted_row_ends_within_a_fifth_of_a_second_and_the_next_one_begins(desk: Desk) -> None:
    """Though its server says nothing more. What holds up a busy machine does not do so each time."""
    lost, *hung = (desk.sequence(f"<hang 4> Long {number}", max_tokens=3000) for number in range(5))
    after = desk.sequence("After")
    desk.engine.submit(lost, *hung, after)
    times_s = []
    for one in hung:
        wait_until(lambda info=one.info: len(desk.ids(info)) == 4, "it runs")  # type: ignore[misc]
        begun_s = monotonic()
        desk.engine.abort([one.info], "cancelled")
        wait_until(lambda info=one.info: desk.has_ended(info), "it ends")  # type: ignore[misc]
        times_s.append(monotonic() - begun_s)
    assert min(times_s) < 0.2
    wait_until(lambda: desk.has_ended(after.info), "the next one runs")
    desk.engine.abort([lost.info], "dropped")
    wait_until(lambda: not desk.engine.stats.has_work, "nothing is left")
    assert not desk.has_ended(lost.info)


def test_a_lost_row_is_told_once_and_what_waits_stays(desk: Desk) -> None:
    running = [desk.sequence(f"Running {number}", max_tokens=3000) for number in range(2)]
    waiting = desk.sequence("Waiting")
    desk.engine.submit(*running, waiting)
    wait_until(lambda: all(desk.ids(one.info) for one in running), "both run")
    desk.server.kill()
    wait_until(lambda: all(desk.has_ended(one.info) for one in running), "both are lost")
    wait_until(lambda: desk.engine.stats.away_s, "the server is away")
    assert not desk.has_ended(waiting.info)
    assert not desk.engine.is_stalled(0.0)
    desk.server.start()
    wait_until(lambda: desk.has_ended(waiting.info), "what waited runs")
    assert [sum(isinstance(output, Lost) for output in desk.of(one.info)) for one in running] == [1, 1]
    assert desk.engine.stats.away_s == 0


def test_a_server_that_comes_back_as_another_one_stays_away(desk: Desk) -> None:
    sequence = desk.sequence("A tale", max_tokens=3000)
    desk.engine.submit(sequence)
    wait_until(lambda: desk.ids(sequence.info), "it runs")
    desk.server.kill()
    desk.server.options["context"] = 128
    with capture_logs() as lines:
        desk.server.start()
        wait_until(lambda: "of 128 tokens" in str(lines), "the log says why it stays away")
    assert desk.engine.stats.away_s
    desk.server.kill()
    del desk.server.options["context"]
    desk.server.start()
    wait_until(lambda: desk.engine.stats.away_since_s is None, "the right one is back")


def test_another_server_in_its_place_is_noticed_though_none_was_ever_away(desk: Desk) -> None:
    """As behind a proxy that sends requests to another server from now on."""
    served = desk.model.served
    with capture_logs() as lines:
        desk.engine._watch._served = replace(served, facts=served.facts._replace(model="another"))
        wait_until(lambda: "it served another of" in str(lines), "the log says why it stays away")
    sequence = desk.sequence("A tale")
    desk.engine.submit(sequence)
    assert desk.engine.stats.away_since_s
    desk.engine._watch._served = served
    wait_until(lambda: desk.has_ended(sequence.info), "it runs once the right one is back")


@pytest.mark.parametrize("kind", ["vllm"])
def test_a_row_waits_while_the_server_does_not_know_the_model(desk: Desk) -> None:
    backend = desk.model.backend
    assert isinstance(backend, Vllm)
    backend._facts = backend._facts._replace(model="gone")
    sequence = desk.sequence("A tale")
    desk.engine.submit(sequence)
    wait_until(lambda: desk.has_ended(sequence.info), "it ends")
    assert len(desk.ids(sequence.info)) == 12


def answer_in_form(desk: Desk, **sampling: Any) -> tuple[str, Finished]:
    """An answer that is to be an object: it comes whole, with its end."""
    sampling = {"max_tokens": 60, **sampling}
    sequence = desk.sequence("A tale", form={"json": {"type": "object"}}, **sampling)
    desk.engine.submit(sequence)
    wait_until(lambda: desk.has_ended(sequence.info), "it ends")
    _, tokens, end = desk.of(sequence.info)
    assert isinstance(tokens, NewTokens)
    assert isinstance(end, Finished)
    return tokens.text, end


def test_a_stop_string_may_cut_a_form(desk: Desk) -> None:
    text, end = answer_in_form(desk, stop=("1",), ignore_eos=False)
    assert (end.error, end.finish_reason, end.stop_reason) == (None, "stop", "1")
    assert text.strip() == ANSWER.partition("1")[0].strip()


@pytest.mark.parametrize("stop", ["\ufffd", "x\ufffd"])
def test_a_stop_string_that_shows_only_at_the_server_s_end_ends_an_output(desk: Desk, stop: str) -> None:
    sequence = desk.sequence("<end 3> A tale", stop=(stop,), max_tokens=40, ignore_eos=False)
    desk.engine.submit(sequence)
    wait_until(lambda: desk.has_ended(sequence.info), "it ends")
    text, end = desk.text(sequence.info), desk.end(sequence.info)
    met = stop if stop == "\ufffd" else None
    assert (end.finish_reason, end.stop_reason, text.endswith("\ufffd")) == ("stop", met, met is None)


@pytest.mark.parametrize("kind", ["llama-server"])
def test_a_form_is_not_begun_anew_behind_its_end(desk: Desk) -> None:
    text, end = answer_in_form(desk)
    assert (text.strip(), end.finish_reason) == (ANSWER, "stop")


def test_names_are_checked_in_the_order_in_which_the_server_writes_them(desk: Desk) -> None:
    text = {"type": "string"}
    animal = {"type": "object", "properties": {"note": text, "kind": text}, "required": ["kind"]}
    both = {"type": "object", "properties": {"properties": animal}, "required": ["properties"]}
    constraint = desk.sequence("A tale", form={"json": both}).constraint
    assert isinstance(constraint, ServedConstraint)
    names = {"vllm": ("note", "kind"), "llama-server": ("kind", "note")}[desk.model.backend.name]
    constraint.check_whole(json.dumps({"properties": dict.fromkeys(names, "x")}))


def test_the_share_of_a_cache_is_told_where_the_server_tells_it(desk: Desk) -> None:
    usage = asyncio.run(desk.model.backend.kv_cache_usage())
    assert usage == (0.0 if desk.model.backend.name == "vllm" else None)


def test_an_engine_without_a_token_is_stalled(desk: Desk) -> None:
    sequence = desk.sequence("<hang 4> A tale")
    desk.engine.submit(sequence)
    wait_until(lambda: len(desk.ids(sequence.info)) == 4, "it has its tokens")
    wait_until(lambda: desk.engine.is_stalled(0.3), "it stands still")
    desk.engine.abort([sequence.info], "dropped")


def test_a_chunk_may_take_as_long_as_its_tokens_did_before(new_server: NewServer) -> None:
    """The first four took three steps, and sixteen may come next."""
    desk = Desk("llama-server", new_server(step_s=0.1), slots=2)
    from_s = monotonic()
    desk.engine.submit(desk.sequence("<hang 4> A tale"))
    wait_until(lambda: desk.engine.is_stalled(0.1), "it stands still")
    first_s = 3 * 0.1
    assert monotonic() - from_s > first_s + 0.1 + 16 * first_s / 4 - 0.01
    desk.engine.stop()
    desk.model.close()


def test_an_output_is_the_same_whether_or_not_it_is_resumed(desk: Desk) -> None:
    whole = desk.sequence("A tale", max_tokens=40)
    desk.engine.submit(whole)
    wait_until(lambda: desk.has_ended(whole.info), "it ends")
    ids = desk.ids(whole.info)
    resumed = desk.sequence("A tale", max_tokens=40)
    resumed.replay(ids[:16])
    desk.engine.submit(resumed)
    wait_until(lambda: desk.has_ended(resumed.info), "it ends")
    assert desk.ids(resumed.info) == ids[16:]
