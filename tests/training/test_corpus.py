import itertools
from collections.abc import Callable

import pytest

from training.corpus import Document, held_out_documents, split_of, training_documents
from training.grammar import NEXT_TURN, agrees, follows
from training.notation import Recogniser, parse, slots_of
from training.shape import SHAPES, Shape
from training.words import LEXICON

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def trained() -> list[Document]:
    return list(itertools.islice(training_documents(seed=3), 500))


@pytest.fixture(scope="module")
def held_out() -> list[Document]:
    return held_out_documents(seed=4, count=90)


@pytest.mark.long
def test_every_document_follows_the_grammar(trained: list[Document], held_out: list[Document]) -> None:
    assert [document for document in trained + held_out if not agrees(document.text)] == []


def test_every_shape_and_form_is_trained_on(trained: list[Document]) -> None:
    assert {document.shape for document in trained} == {shape.name for shape in SHAPES}
    assert any(NEXT_TURN in document.prompt for document in trained)
    assert any("<<SYS>>\n" in document.prompt for document in trained)


def test_the_same_seed_gives_the_same_documents() -> None:
    first, again, other = (list(itertools.islice(training_documents(seed), 20)) for seed in (3, 3, 5))
    assert first == again
    assert first != other


def splits_of(documents: list[Document], shape: Shape) -> set[str]:
    """The sides that the openings of plain documents of a shape stand on, read from their texts."""
    opening = Recogniser(parse(shape.opening), LEXICON)
    openings = [opening.words(document.prompt) for document in documents if document.shape == shape.name]
    return {split_of(shape, words) for words in openings if words is not None}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_combination_of_words_stands_on_both_sides(
    shape: Shape, trained: list[Document], held_out: list[Document]
) -> None:
    assert splits_of(trained, shape) == {"train"}
    assert splits_of(held_out, shape) == {"held-out"}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_question_names_every_word_of_the_opening(shape: Shape) -> None:
    """Else a held-out question could have the words of a trained one."""
    assert set(shape.key_slots) <= {slot.name for slot in slots_of(parse(shape.ask))}


CHANGES: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[:-1],
    "gone on": lambda text: f"{text} And then?",
    "with another sign": lambda text: text.replace(".", "!", 1),
    "with two spaces": lambda text: text.replace(" ", "  ", 1),
    "in small letters": str.lower,
    "with a word left out": lambda text: text.replace(" the ", " ", 1).replace(" has ", " ", 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_document_breaks_the_grammar(
    change: Callable[[str], str], held_out: list[Document]
) -> None:
    texts = [document.text for document in held_out[: len(SHAPES)]]
    changed = [change(text) for text in texts if change(text) != text]
    assert changed
    assert [text for text in changed if follows(text)] == []


@pytest.mark.parametrize("shape", ["lost", "quarrel", "star", "sum", "owners"])
def test_another_name_at_the_end_is_grammar_but_agrees_with_nothing(
    shape: str, held_out: list[Document]
) -> None:
    document = next(document for document in held_out if document.shape == shape)
    names = [word[""] for word in LEXICON["hero"]]
    old = next(name for name in names if name in document.prompt and name in document.completion)
    new = next(name for name in names if name not in document.text)
    before, after = document.completion.rsplit(old, maxsplit=1)
    changed = document.prompt + before + new + after
    assert follows(changed)
    assert not agrees(changed)
