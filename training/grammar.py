"""The grammar of all documents: every shape as a text to go on with, and as a chat in Llama-2's form."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from training.notation import Choice, Recogniser, Template, parse, pattern
from training.shape import SHAPES, Shape
from training.words import LEXICON

NEXT_TURN = " </s><s>"  # what stands between the turns of a chat
_SYSTEM = parse("<<SYS>>\n{system}\n<</SYS>>\n\n")
_NO_SYSTEM: Template = ()
_CHAT_HEAD: Template = ("[INST] ", Choice((_SYSTEM, _NO_SYSTEM, _NO_SYSTEM)))


@dataclass(frozen=True)
class Form:
    """What a prompt of a shape shows, and what goes on from there."""

    prompt: Template
    completion: Template


def plain(shape: Shape) -> Form:
    """The opening, to go on with."""
    return Form(parse(shape.opening), parse(f" {shape.rest}"))


def question(shape: Shape) -> Form:
    """A chat in which the user names everything that the opening names."""
    return _chat(shape.ask, shape)


def wish(shape: Shape) -> Form:
    """A chat in which the user leaves most words to the model."""
    return _chat(shape.wish or shape.ask, shape)


def _chat(request: str, shape: Shape) -> Form:
    return Form((*_CHAT_HEAD, *parse(request), " [/INST]"), parse(f" {shape.answer}"))


def follows(text: str) -> bool:
    """Whether the grammar makes this document, whatever words fill its slots; each turn by itself."""
    return all(any(made.fullmatch(turn) for made in _patterns()) for turn in text.split(NEXT_TURN))


def agrees(text: str) -> bool:
    """Whether the generator can write it: it says each name, thing and place again as it said it first."""
    return all(
        any(recogniser.follows(turn) for recogniser in _recognisers()) for turn in text.split(NEXT_TURN)
    )


@cache
def _patterns() -> Sequence[re.Pattern[str]]:
    return [re.compile(pattern(template, LEXICON)) for template in _templates()]


@cache
def _recognisers() -> Sequence[Recogniser]:
    return [Recogniser(template, LEXICON) for template in _templates()]


def _templates() -> list[Template]:
    forms = [form(shape) for shape in SHAPES for form in (plain, question, wish)]
    return [form.prompt + form.completion for form in forms]
