"""Token events are written without a model that validates them, as the model itself would write them."""

from base64 import b64decode, b64encode
from dataclasses import replace
from itertools import accumulate
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from llama_herd.model.parsers.output_parser import OutputParser
from llama_herd.tasks.protocol.events import End, FinishReason, Started, Timings, Vectors, parse_event
from llama_herd.worker.engine.interface import (
    Finished,
    NewTokens,
    NewVector,
    PromptScores,
    SampledToken,
    SequenceInfo,
)
from llama_herd.worker.jobs.event_log import MAX_VECTOR_CHARS, EventAuthor, EventLog
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from tests.worker.jobs.test_output_reader import FORMATS, OUTPUT
from tests.worker.jobs.test_suspect_gate import CLAIM

Step = PromptScores | NewTokens | Finished

NUM_CHOICES = 3
PIECES = [bytes([byte]) for byte in range(256)]
ids = st.integers(0, 300)  # some beyond the vocabulary
logprobs = st.floats(max_value=0.0) | st.just(float("nan"))  # minus infinity, too


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Outputs of one job: with scores in all of its tokens, or in none."""
    tops = st.lists(st.tuples(ids, logprobs), min_size=1, max_size=3).map(tuple)
    top = st.just(()) if draw(st.booleans()) else tops
    scored = st.tuples(ids, logprobs, top).map(SampledToken._make)
    tokens = scored if draw(st.booleans()) else ids.map(SampledToken)
    text = st.text(max_size=5) | st.sampled_from(OUTPUT)
    sequence = st.integers(0, NUM_CHOICES - 1).map(lambda choice: SequenceInfo("job", choice=choice))
    scores = st.builds(PromptScores, sequence, st.lists(scored, max_size=3).map(tuple))
    new = st.builds(NewTokens, sequence, st.lists(tokens, max_size=3).map(tuple), text)
    reasons, stops = st.sampled_from(get_args(FinishReason)), st.none() | st.text(max_size=2) | ids
    return draw(st.lists(scores | new | st.builds(Finished, sequence, reasons, stops, st.none()), max_size=9))


@given(steps(), st.sampled_from([1, NUM_CHOICES]), st.booleans(), st.booleans())
def test_what_is_written_is_what_the_model_writes(
    outputs: list[Step], num_choices: int, is_read: bool, is_joined: bool
) -> None:
    stream = EventLog("jöb", CLAIM, RecordedOutputs.from_events([]), EventAuthor("w", "m", pieces=PIECES))
    stream.num_choices = num_choices
    if is_read:
        stream.read_outputs(lambda: OutputParser(FORMATS, ["f", "g"]))
    entries = []
    for output in outputs:
        if output.sequence.choice < num_choices:
            if isinstance(output, Finished):
                stream.end_output(output.sequence.choice, output.finish_reason, output.stop_reason)
            else:
                stream.add(output)
            entries += [] if is_joined else stream.flush()
    for entry in (*entries, *stream.finish()):
        event = parse_event(entry.event)
        assert event.to_json() == entry.event
        assert (event.seq, event.epoch, event.type) == (entry.seq, entry.epoch, entry.kind)


def test_a_start_is_dated_by_the_clock_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 50.0
    monkeypatch.setattr("llama_herd.worker.jobs.event_log.monotonic", lambda: now_s)
    claim = replace(CLAIM, now_ms=7_000)
    stream = EventLog("job", claim, RecordedOutputs.from_events([]), EventAuthor("w", "m"))
    now_s += 2.5
    start = parse_event(stream.start(1, 7).event)
    assert isinstance(start, Started)
    assert start.at_ms == 9_500


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=60))
def test_vectors_are_written_in_events_of_a_bounded_length(lengths: list[int]) -> None:
    vectors = {number: bytes(4 * length) for number, length in enumerate(lengths)}
    stream = EventLog("job", CLAIM, RecordedOutputs.from_events([]), EventAuthor("w", "m"))
    stream.num_texts = len(vectors)
    for number, vector in vectors.items():
        stream.add(NewVector(SequenceInfo("job", choice=number), vector))
    entries = stream.flush()
    events = [parse_event(entry.event) for entry in entries]
    assert [event.to_json() for event in events] == [entry.event for entry in entries]
    found = {
        number: b64decode(vector)
        for event in events
        if isinstance(event, Vectors)
        for number, vector in zip(event.texts, event.vectors, strict=True)
    }
    assert found == vectors
    assert [entry.i for entry in entries] == [*accumulate((one.num_ids for one in entries[:-1]), initial=0)]
    longest = max(map(len, map(b64encode, vectors.values())))
    assert max(len(entry.event) for entry in entries) < MAX_VECTOR_CHARS + longest + 1000
    assert RecordedOutputs.from_events(events).num == stream.num_ids == len(vectors)
    assert not stream.flush()
    end = parse_event(stream.end("stop", 7, Timings()).event)
    assert isinstance(end, End)
    assert end.usage is not None
    usage = end.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 0, 7)
