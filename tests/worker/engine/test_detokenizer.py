"""Laws of the Detokenizer: nothing lost, nothing broken, nothing leaked, nothing held without need."""

from itertools import permutations

import pytest
from hypothesis import strategies as st

from llama_herd.model.parsers.formats import REASONING_FORMATS
from llama_herd.worker.engine.detokenizer import Detokenizer, ReasoningEnd
from tests.examples import for_any

BYTES = tuple(bytes([value]) for value in range(256))
WHOLE = ("", " Once", " upon", "END", "E", "N", "D", "é", "🐑")
WORDS = (*(word.encode() for word in WHOLE), b"\xf0\x9f", b"\x90\x91")


def written(pieces: tuple[bytes, ...], ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    writer = Detokenizer(pieces, stop)
    return [writer.write(token_id) for token_id in ids] + [writer.finish()]


@for_any(st.lists(st.integers(0, 255)))
def test_joined_text_equals_the_full_decode_for_any_bytes(ids: list[int]) -> None:
    assert "".join(written(BYTES, ids)) == bytes(ids).decode("utf-8", "replace")


@for_any(st.lists(st.integers(0, len(WORDS) - 1)))
def test_an_answer_goes_without_one_space_at_its_front(ids: list[int]) -> None:
    writer = Detokenizer(WORDS, is_answer=True)
    answer = "".join([*map(writer.write, ids), writer.finish()])
    assert answer == "".join(written(WORDS, ids)).removeprefix(" ")


@for_any(st.text())
def test_joined_text_of_any_unicode_is_that_text(text: str) -> None:
    assert "".join(written(BYTES, list(text.encode()))) == text


@for_any(st.text(min_size=1))
def test_a_character_appears_with_its_last_byte(text: str) -> None:
    pieces = written(BYTES, list(text.encode()))
    num_bytes = 0
    for length, char in enumerate(text, start=1):
        num_bytes += len(char.encode())
        assert "".join(pieces[:num_bytes]) == text[:length]


@for_any(
    st.lists(st.integers(0, len(WORDS) - 1)),
    st.lists(st.text(alphabet="END é", min_size=1, max_size=4), max_size=3),
)
def test_text_ends_where_the_first_stop_string_begins(ids: list[int], stop: list[str]) -> None:
    full = b"".join(WORDS[i] for i in ids).decode("utf-8", "replace")
    writer = Detokenizer(WORDS, stop)
    text = ""
    for token_id in ids:
        text += writer.write(token_id)
        if writer.has_stopped:
            break
    text += writer.finish()
    assert full.startswith(text)
    assert not any(s in text for s in stop)
    if not writer.has_stopped:
        assert text == full


def test_of_stop_strings_that_begin_together_the_first_of_the_list_is_told() -> None:
    for stop in permutations(("D", "E", "EN", "END", "ND")):
        writer = Detokenizer(WORDS, stop)
        assert (writer.write(1), writer.write(3)) == (" Once", "")
        assert writer.met == next(one for one in stop if one.startswith("E"))


@for_any(st.lists(st.integers(0, 255), max_size=40), st.integers(0, 40))
def test_a_replayed_writer_goes_on_as_the_first_would_have(ids: list[int], cut: int) -> None:
    first = written(BYTES, ids, ("ab", "\x01\x02"))
    second = Detokenizer(BYTES, ("ab", "\x01\x02"))
    replayed = [second.write(token_id) for token_id in ids[:cut]]
    assert replayed + [second.write(token_id) for token_id in ids[cut:]] + [second.finish()] == first


def test_no_beginning_of_a_stop_string_is_shown() -> None:
    assert written(WORDS, [1, 4, 5, 6], ("END",)) == [" Once", "", "", "", ""]


def test_text_is_held_only_while_it_may_become_a_stop_string() -> None:
    assert written(WORDS, [4, 5, 2], ("END",)) == ["", "", "EN upon", ""]


def test_text_that_was_held_is_shown_when_the_sequence_ends() -> None:
    assert written(WORDS, [1, 4, 5], ("END",)) == [" Once", "", "", "EN"]


@pytest.mark.parametrize("ids", [[8], [9, 10]])
def test_an_emoji_is_shown_whole_or_not_at_all(ids: list[int]) -> None:
    assert [piece for piece in written(WORDS, ids) if piece] == ["🐑"]


def test_a_cut_character_shows_as_one_replacement_at_the_end() -> None:
    assert written(WORDS, [1, 9]) == [" Once", "", "�"]


@for_any(
    st.lists(st.sampled_from(["<think>", "</think>", *"<think>/ E\n\u00a0"]), max_size=12).map("".join),
    st.lists(st.sampled_from(["E", "\n", "</", "nk"]), min_size=1, max_size=2),
    st.booleans(),
)
def test_stop_strings_count_behind_the_reasoning(full: str, stop: list[str], begins: bool) -> None:
    end = ReasoningEnd(REASONING_FORMATS["think"], begins_in_reasoning=begins)
    writer = Detokenizer(BYTES, stop, reasoning_end=end)
    text = ""
    for byte in full.encode():
        text += writer.write(byte)
        if writer.has_stopped:
            break
    text += writer.finish()
    is_reasoning = begins or full.lstrip(" \n").startswith("<think>")
    reasoning, mark, answer = full.partition("</think>") if is_reasoning else ("", "", full)
    found = [answer.index(one) for one in stop if one in answer]
    assert text == reasoning + mark + answer[: min(found, default=len(answer))]
    assert writer.has_stopped == bool(found)


def test_behind_a_space_that_no_parser_passes_over_no_reasoning_begins() -> None:
    end = ReasoningEnd(REASONING_FORMATS["think"], begins_in_reasoning=False)
    writer = Detokenizer(("\u00a0".encode(), b"<think>", b" END"), ("END",), reasoning_end=end)
    assert "".join(map(writer.write, range(3))) == "\u00a0<think> "
    assert writer.has_stopped
