"""Laws of outputs that are read: what events say, joined, is the same however they are cut and resumed."""

import re
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import strategies as st
from redis import Redis

from llama_herd.model.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, OutputFormats
from llama_herd.model.parsers.output_parser import OutputParser
from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Event, Token, parse_event
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.engine.interface import Finished, NewTokens, SampledToken, SequenceInfo, StepOutput
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.output_reader import OutputParts, OutputReader, call_id
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from tests.examples import for_any
from tests.worker.jobs.publisher_desk import Desk

FORMATS = OutputFormats(REASONING_FORMATS["think"], TOOL_FORMATS["hermes"])

OUTPUT = (
    '<think>I should call</think>So: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n'
    '<tool_call>{"name": "g", "arguments": {}}</tool_call> and <tool'
)
#: An id stands for a piece of the output.
PIECES = re.findall(r"</?|\w+|\W", OUTPUT)


def new_parser() -> OutputParser:
    return OutputParser(FORMATS, ["f", "g"])


def attempt_of(events: list[Event], num_choices: int = 1, *, is_read: bool = True) -> Attempt:
    """A worker's attempt that goes on where these events end."""
    tokens = [event for event in events if isinstance(event, Token)]
    num_ids = sum(len(token.ids) for token in tokens)
    claimed = Yours(epoch=1, n=num_ids, seq=len(events), deaths=0, attempts=0, due_ms=0, body="", now_ms=0)
    stream = EventLog("job", claimed, RecordedOutputs.from_events(events), EventAuthor("w", "m"))
    stream.num_choices = num_choices
    if is_read:
        stream.read_outputs(new_parser)
    return Attempt(stream, [], [SequenceInfo("job", "default", choice=n) for n in range(num_choices)])


def steps(attempt: Attempt, ids: range, choice: int = 0) -> Iterator[list[StepOutput]]:
    """What steps bring that draw these ids: of the last one the end."""
    sequence = attempt.sequences[choice]
    for token_id in ids:
        end = [Finished(sequence, "stop")] if token_id == len(PIECES) - 1 else []
        yield [NewTokens(sequence, (SampledToken(token_id),), PIECES[token_id]), *end]


def outputs(attempt: Attempt, ids: range, choice: int = 0) -> list[StepOutput]:
    return [*chain.from_iterable(steps(attempt, ids, choice))]


def written(attempt: Attempt, drawn: Iterator[list[StepOutput]], flush_every: int = 1) -> list[Event]:
    """The events of these steps."""
    entries = []
    for number, step in enumerate(drawn, start=1):
        entries += [entry for output in step for entry in attempt.record(output)]
        if number % flush_every == 0:
            entries += attempt.stream.flush()
    return [parse_event(entry.event) for entry in [*entries, *attempt.stream.flush()]]


def whole(flush_every: int = 1) -> list[Event]:
    attempt = attempt_of([])
    return written(attempt, steps(attempt, range(len(PIECES))), flush_every)


def said(events: list[Event]) -> dict[str, object]:
    """All that the result says of the output."""
    names = {"text", "ids", "reasoning", "content", "tool_calls", "finish_reason"}
    return Result.from_events(events).model_dump(include=names)


def test_an_output_says_what_was_thought_said_and_called() -> None:
    result = Result.from_events(whole())
    assert (result.text, result.reasoning, result.content) == (OUTPUT, "I should call", "So: and <tool")
    assert [(call.index, call.name, call.arguments) for call in result.tool_calls or ()] == [
        (0, "f", '{"x": 1}'),
        (1, "g", "{}"),
    ]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call.id) for call in result.tool_calls or ())
    assert len({call_id(job, n, i) for job in "ab" for n in range(3) for i in range(3)}) == 18


@pytest.mark.long
@pytest.mark.parametrize("flush_every", [1, 3, 1000])
def test_cut_at_every_token_and_resumed_it_says_the_same(flush_every: int) -> None:
    expected = said(whole())
    for cut in range(len(PIECES)):
        before = attempt_of([])
        recorded = written(before, steps(before, range(cut)), flush_every)
        after = attempt_of(recorded)
        events = [*recorded, *written(after, steps(after, range(cut, len(PIECES))), flush_every)]
        assert said(events) == expected
        assert [event.seq for event in events] == list(range(1, len(events) + 1))


@pytest.mark.long
def test_a_worker_goes_on_where_one_that_reads_no_outputs_has_been() -> None:
    expected = said(whole())
    for cut in range(len(PIECES)):
        before = attempt_of([], is_read=False)
        recorded = written(before, steps(before, range(cut)))
        after = attempt_of(recorded)
        assert said([*recorded, *written(after, steps(after, range(cut, len(PIECES))))]) == expected


@pytest.mark.long
@for_any(st.lists(st.integers(0, 1), min_size=2 * len(PIECES), max_size=2 * len(PIECES)), st.integers(0, 99))
def test_each_of_several_outputs_is_read_by_itself(order: list[int], cut: int) -> None:
    """They come in any order; one that has ended before the cut says nothing twice."""
    turns = [iter(range(len(PIECES))) for _ in range(2)]
    drawn = [(choice, token_id) for choice in order if (token_id := next(turns[choice], None)) is not None]
    drawn += [(choice, token_id) for choice in range(2) for token_id in turns[choice]]
    events: list[Event] = []
    for lot in (drawn[:cut], drawn[cut:]):
        attempt = attempt_of(events, num_choices=2)
        ended = {choice for choice, token_id in drawn[:cut] if token_id == len(PIECES) - 1}
        attempt.reasons = {choice: "stop" for choice in ended if events}
        in_turn = (
            step for choice, token_id in lot for step in steps(attempt, range(token_id, token_id + 1), choice)
        )
        events += written(attempt, in_turn)
    tokens = [event for event in events if isinstance(event, Token)]
    alone = Result.from_events(whole())
    for choice in range(2):
        own = [token for token in tokens if token.choice == choice]
        assert own[-1].finish_reason == "stop"
        assert "".join(token.reasoning or "" for token in own) == alone.reasoning
        assert "".join(token.content or "" for token in own) == alone.content
        calls = [call for token in own for call in token.tool_calls or ()]
        assert [call.index for call in calls] == [0, 1]
        assert [call.id for call in calls] == [call_id("job", choice, index) for index in range(2)]


def test_what_is_rewound_is_as_if_it_had_never_been_read() -> None:
    """Also if the output had been read to its end by then, as a cancel may forestall that event, too."""
    for cut in range(len(PIECES)):
        for end in (cut, cut + 1, len(PIECES)):
            reader, other = (OutputReader(new_parser, "job", choice=0) for _ in range(2))
            for piece in PIECES[:end]:
                reader.write(piece)
            reader.finish()
            reader.rewind(len("".join(PIECES[cut:end])))
            other.write("".join(PIECES[:cut]))
            assert (reader.finish(), reader.finish()) == (other.finish(), OutputParts())


@pytest.mark.redis
def test_a_cancel_in_the_middle_of_a_call_keeps_what_was_written_of_it(redis: Redis) -> None:
    """Whichever events the ledger has refused since."""
    num_ids = PIECES.index("arguments")
    for num_refused in (0, 2):
        desk, job_id = Desk(redis), f"job-{num_refused}"
        attempt = desk.open(job_id)
        attempt.stream.read_outputs(new_parser)
        desk.publisher.put(outputs(attempt, range(num_ids)))
        desk.send()
        run_call(redis, desk.ledger.cancel(job_id))
        desk.publisher.put(outputs(attempt, range(num_ids, num_ids + num_refused)))
        desk.publisher.put([Finished(attempt.sequences[0], "cancelled")] if not num_refused else [])
        desk.send()
        result = desk.result(job_id)
        text = "".join(PIECES[:num_ids])
        assert (result.finish_reason, result.text) == ("cancelled", text)
        assert (result.reasoning, result.content, result.tool_calls) == (
            "I should call",
            text.partition("</think>")[2],
            None,
        )
        last = [event for event in desk.events(job_id) if isinstance(event, Token)][-1]
        assert (last.i, last.ids, last.text) == (num_ids, (), "")


@pytest.mark.redis
def test_a_cancel_says_nothing_again_of_an_output_that_has_ended(redis: Redis) -> None:
    """Its last event has said what was held of it."""
    desk = Desk(redis)
    attempt = desk.open("job", sampling={"n": 2})
    attempt.stream.read_outputs(new_parser)
    desk.start(attempt)
    desk.publisher.put([*outputs(attempt, range(len(PIECES))), *outputs(attempt, range(1), choice=1)])
    desk.send()
    run_call(redis, desk.ledger.cancel("job"))
    desk.publisher.put(outputs(attempt, range(1, 2), choice=1))
    desk.send()
    result = desk.result("job")
    assert result.finish_reason == "cancelled"
    assert (result.choices or ())[0].content == Result.from_events(whole()).content
