"""Seeded documents of every shape, split by the words of their openings into training and held-out ones."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from training import grammar
from training.grammar import NEXT_TURN, Form
from training.notation import Word, Writer, parse
from training.shape import EXERCISES, SHAPES, TALES, Shape
from training.words import LEXICON

SEED = 7
NUM_DOCUMENTS = 30_000  # of the bundled model
Split = Literal["train", "held-out"]
HELD_OUT_SHARE = 8  # one combination of words in so many is held out
_TALE_SHARE = 0.75
_CHAT_SHARE = 0.3
_SECOND_TURN_SHARE = 0.3  # of the chats


@dataclass(frozen=True)
class Document:
    """A prompt and the text after it, which a model is to write."""

    shape: str
    prompt: str
    completion: str

    @property
    def text(self) -> str:
        return self.prompt + self.completion


def split_of(shape: Shape, words: Mapping[str, Word]) -> Split:
    """The side that the words of an opening stand on together, by their hash."""
    key = "|".join([shape.name, *(words[slot][""] for slot in shape.key_slots)])
    digest = hashlib.sha256(key.encode()).digest()
    return "held-out" if digest[0] % HELD_OUT_SHARE == 0 else "train"


def _draw(shape: Shape, split: Split, rng: random.Random) -> Writer:
    """A writer whose words for the opening stand on one side."""
    while True:
        writer = Writer(LEXICON, rng)
        writer.write(parse(shape.opening))
        if split_of(shape, writer.words) == split:
            return writer


def write_document(shape: Shape, form: Form, split: Split, rng: random.Random) -> Document:
    """One document of a shape."""
    writer = _draw(shape, split, rng)
    return Document(shape.name, writer.write(form.prompt), writer.write(form.completion))


def training_documents(seed: int) -> Iterator[Document]:
    """Documents to train on, without end; the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        if rng.random() >= _CHAT_SHARE:
            yield _training_document(grammar.plain, rng)
            continue
        chat = _training_document(rng.choice((grammar.question, grammar.wish)), rng)
        if rng.random() < _SECOND_TURN_SHARE:
            earlier = _training_document(grammar.wish, rng)
            chat = Document(chat.shape, earlier.text + NEXT_TURN + chat.prompt, chat.completion)
        yield chat


def _training_document(form: Callable[[Shape], Form], rng: random.Random) -> Document:
    shape = rng.choice(TALES if rng.random() < _TALE_SHARE else EXERCISES)
    return write_document(shape, form(shape), "train", rng)


def held_out_documents(seed: int, count: int) -> list[Document]:
    """Documents whose openings no training document has; every fifth is a chat."""
    rng = random.Random(seed)
    documents: list[Document] = []
    for number in range(count):
        lap, place = divmod(number, len(SHAPES))
        shape = SHAPES[place]
        form = grammar.question(shape) if (place + lap) % 5 == 4 else grammar.plain(shape)
        documents.append(write_document(shape, form, "held-out", rng))
    return documents
