"""Token events are written without a model that validates them, as the model itself would write them."""

from typing import Any, get_args

from hypothesis import given, strategies as st

from llama_herd.model.parsers.output_parser import OutputParser
from llama_herd.tasks.protocol.events import FinishReason, parse_event
from llama_herd.worker.engine.interface import SampledToken, SequenceInfo, StepOutput
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog, RecordedOutputs
from tests.worker.jobs.test_output_reader import FORMATS, OUTPUT
from tests.worker.jobs.test_suspect_gate import CLAIM

NUM_CHOICES = 3
PIECES = [bytes([byte]) for byte in range(256)]
ids = st.integers(0, 300)  # some beyond the vocabulary
logprobs = st.floats(max_value=0.0) | st.just(float("nan"))  # minus infinity, too


@st.composite
def steps(draw: st.DrawFn) -> list[StepOutput]:
    """Outputs of one job: with scores in all of its tokens, or in none."""
    tops = st.lists(st.tuples(ids, logprobs), min_size=1, max_size=3).map(tuple)
    top = st.just(()) if draw(st.booleans()) else tops
    scored = st.tuples(ids, logprobs, top).map(SampledToken._make)
    tokens = scored if draw(st.booleans()) else ids.map(SampledToken)
    text = st.text(max_size=5) | st.sampled_from(OUTPUT)
    output: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {"tokens": st.lists(tokens, max_size=3).map(tuple), "text": text},
        optional={
            "finish_reason": st.sampled_from(get_args(FinishReason)),
            "stop_reason": st.text(max_size=2) | ids,
            "prompt_scores": st.lists(scored, max_size=3).map(tuple),
        },
    )
    choices = st.integers(0, NUM_CHOICES - 1)
    drawn = draw(st.lists(st.tuples(choices, output), max_size=6))
    return [StepOutput(SequenceInfo("job", choice=choice), **fields) for choice, fields in drawn]


@given(steps(), st.sampled_from([1, NUM_CHOICES]), st.booleans(), st.booleans())
def test_what_is_written_is_what_the_model_writes(
    outputs: list[StepOutput], num_choices: int, is_read: bool, is_joined: bool
) -> None:
    stream = EventLog("jöb", CLAIM, RecordedOutputs.from_events([]), EventAuthor("w", "m", pieces=PIECES))
    stream.num_choices = num_choices
    if is_read:
        stream.read_outputs(lambda: OutputParser(FORMATS, ["f", "g"]))
    entries = []
    for output in outputs:
        if output.sequence.choice < num_choices:
            stream.add(output)
            entries += [] if is_joined else stream.flush()
    for entry in (*entries, *stream.finish()):
        event = parse_event(entry.event)
        assert event.to_json() == entry.event
        assert (event.seq, event.epoch, event.type) == (entry.seq, entry.epoch, entry.kind)
