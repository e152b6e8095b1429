import random

import pytest

from training.notation import Recogniser, Writer, parse

LEXICON = {
    "hero": [{"": "Mia", "he": "she"}, {"": "Tom", "he": "he"}],
    "colour": [{"": "red"}, {"": "blue"}, {"": "dark blue"}],
}


def follows(source: str, text: str) -> bool:
    return Recogniser(parse(source), LEXICON).follows(text)


def test_a_writer_keeps_the_word_of_a_slot() -> None:
    writer = Writer(LEXICON, random.Random(1))
    text = writer.write(parse("{hero} runs, {hero} sings, [and {hero.he}|then {hero.he}] sleeps."))
    assert text.count(writer.word("hero")[""]) == 2
    assert writer.word("hero")["he"] in text


def test_no_word_fills_two_slots() -> None:
    for seed in range(20):
        one, other = Writer(LEXICON, random.Random(seed)).write(parse("{hero} {hero2}")).split()
        assert one != other


def test_choices_nest_and_may_be_empty() -> None:
    source = "a [b[ c|]|d]"
    assert [follows(source, text) for text in ("a b c", "a b", "a d")] == [True] * 3
    assert not follows(source, "a c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mia runs and she is red.", True),
        ("Mia runs and he is red.", False),  # the wrong pronoun
        ("Ann runs and she is red.", False),  # a name of no list
        ("Mia runs and she is red. ", False),  # something after the end
        ("Mia runs and she is", False),  # cut off
    ],
)
def test_a_recogniser_accepts_what_the_words_allow(text: str, expected: bool) -> None:
    assert follows("{hero} runs and {hero.he} is {colour}.", text) is expected


def test_a_recogniser_refuses_one_word_in_two_slots() -> None:
    assert follows("{hero} and {hero2}", "Mia and Tom")
    assert not follows("{hero} and {hero2}", "Mia and Mia")


def test_a_recogniser_tries_the_words_again_that_begin_alike() -> None:
    assert follows("{colour}[ sea|] is {colour}", "blue sea is blue")
    assert follows("[dark|very] {colour2} {colour}", "dark blue red")


@pytest.mark.parametrize("source", ["[a|b", "a]", "a|b"])
def test_brackets_that_do_not_close_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"stray|not closed"):
        parse(source)
