"""The shapes that documents have: the plots of tales.txt and the exercises of exercises.txt.

A shape stands in its file as `== name` and its texts, in the notation of training.notation. A text goes on
over indented lines. `$NAME = text` at the top names a part that several texts share.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template as Macro

from training.notation import parse, slots_of


@dataclass(frozen=True)
class Shape:
    """The texts of one shape; they share their slots.

    opening: what a prompt shows; the words of its slots tell a prompt from another.
    rest: what stands after it.
    ask: a chat request that names the slots of the opening.
    reply: the answer to it; by default the opening and the rest.
    wish: a chat request that leaves most words to the model; empty where there is none.
    """

    name: str
    opening: str
    rest: str
    ask: str
    reply: str = ""
    wish: str = ""

    @property
    def whole(self) -> str:
        return f"{self.opening} {self.rest}"

    @property
    def answer(self) -> str:
        return self.reply or self.whole

    @cached_property
    def key_slots(self) -> tuple[str, ...]:
        """The slots of the opening, sorted."""
        return tuple(sorted({slot.name for slot in slots_of(parse(self.opening))}))


def _read_shapes(path: Path) -> Sequence[Shape]:
    source = path.read_text(encoding="utf-8").replace("\n    ", " ")
    head, *sections = re.split(r"^== ", source, flags=re.MULTILINE)
    parts = dict(re.findall(r"^\$(\w+) = (.*)$", head, flags=re.MULTILINE))
    return [_read_shape(Macro(section).substitute(parts)) for section in sections]


def _read_shape(section: str) -> Shape:
    name, *lines = section.strip().splitlines()
    texts = dict(line.split(": ", maxsplit=1) for line in lines)
    return Shape(name, **texts)


_FOLDER = Path(__file__).parent
TALES = _read_shapes(_FOLDER / "tales.txt")
EXERCISES = _read_shapes(_FOLDER / "exercises.txt")
SHAPES = (*TALES, *EXERCISES)
