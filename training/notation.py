"""A small notation for texts with choices and slots; it can write them, and it recognises what it can write.

    [a|b|c]      one of the options, which may nest and may be empty
    {hero}       the word that fills the slot "hero", the same one throughout a text
    {hero.his}   another form of that word

A slot takes its word from the list of its name without trailing digits: "spot2" takes from "spot". No word
fills two slots of one text. Spaces around | do not count.
"""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

Word = Mapping[str, str]  # a word's forms; the form "" is how it is named
Lexicon = Mapping[str, Sequence[Word]]


@dataclass(frozen=True)
class Slot:
    """A place that a word fills in one of its forms."""

    name: str
    form: str


@dataclass(frozen=True)
class Choice:
    """A place that one of several texts fills."""

    options: "tuple[Template, ...]"


Template = tuple["str | Slot | Choice", ...]

_TOKEN = re.compile(r"[\[\]]|\s*\|\s*|\{(?P<slot>\w+)(?:\.(?P<form>\w+))?\}|[^\[\]|{}]+?(?=\s*\||[\[\]{}]|$)")


@cache
def parse(source: str) -> Template:
    """Reads a template from the notation. Raises ValueError where brackets do not close."""
    stack: list[list[list[str | Slot | Choice]]] = [[[]]]
    for token in _TOKEN.finditer(source):
        text, name = token.group(), token.group("slot")
        if text == "[":
            stack.append([[]])
        elif text == "]" and len(stack) > 1:
            options = stack.pop()
            stack[-1][-1].append(Choice(tuple(tuple(option) for option in options)))
        elif text.strip() == "|" and len(stack) > 1:
            stack[-1].append([])
        elif text == "]" or text.strip() == "|":
            raise ValueError(f"stray {text!r} at {token.start()} in {source!r}")
        else:
            stack[-1][-1].append(Slot(name, token.group("form") or "") if name else text)
    if len(stack) > 1:
        raise ValueError(f"an option is not closed in {source!r}")
    return tuple(stack[0][0])


def slots_of(template: Template) -> Iterable[Slot]:
    """All slots of a template, in order, with repeats."""
    for node in template:
        if isinstance(node, Slot):
            yield node
        elif isinstance(node, Choice):
            for option in node.options:
                yield from slots_of(option)


def list_name(slot: str) -> str:
    """The name of the list a slot takes its words from."""
    return slot.rstrip("0123456789")


def pattern(template: Template, lexicon: Lexicon) -> str:
    """A regular expression of the texts that the template makes when a slot may change its word each time."""
    return "".join(_node_pattern(node, lexicon) for node in template)


def _node_pattern(node: str | Slot | Choice, lexicon: Lexicon) -> str:
    if isinstance(node, Choice):
        return _any_of(pattern(option, lexicon) for option in node.options)
    if isinstance(node, Slot):
        return _any_of(re.escape(word[node.form]) for word in lexicon[list_name(node.name)])
    return re.escape(node)


def _any_of(patterns: Iterable[str]) -> str:
    return f"(?:{'|'.join(dict.fromkeys(patterns))})"


@dataclass
class Writer:
    """Writes templates with one set of words: a slot that was filled once keeps its word."""

    lexicon: Lexicon
    rng: random.Random
    words: dict[str, Word] = field(default_factory=dict)

    def write(self, template: Template) -> str:
        """A text of the template: of each choice one option, each as likely."""
        return "".join(self._write_node(node) for node in template)

    def word(self, slot: str) -> Word:
        """The word that fills a slot, chosen when it is first asked for."""
        if slot not in self.words:
            taken = self.words.values()
            self.words[slot] = self.rng.choice([w for w in self.lexicon[list_name(slot)] if w not in taken])
        return self.words[slot]

    def _write_node(self, node: str | Slot | Choice) -> str:
        if isinstance(node, Choice):
            return self.write(self.rng.choice(node.options))
        if isinstance(node, Slot):
            return self.word(node.name)[node.form]
        return node


@dataclass(frozen=True)
class Recogniser:
    """Accepts exactly the texts that a Writer can make of one template."""

    template: Template
    lexicon: Lexicon

    def follows(self, text: str) -> bool:
        """Whether a Writer can make this text."""
        return self.words(text) is not None

    def words(self, text: str) -> Mapping[str, Word] | None:
        """The words that the slots hold in this text; None when no Writer can make it."""
        return self._match(self.template, text, {})

    def _match(self, template: Template, text: str, words: Mapping[str, Word]) -> Mapping[str, Word] | None:
        """All words, those of the slots before and in this template; None when the text cannot be its."""
        if not template:
            return None if text else words
        node, rest = template[0], template[1:]
        if isinstance(node, Choice):
            found = (self._match(option + rest, text, words) for option in node.options)
            return next((match for match in found if match is not None), None)
        if isinstance(node, Slot):
            return self._match_slot(node, rest, text, words)
        return self._match(rest, text.removeprefix(node), words) if text.startswith(node) else None

    def _match_slot(
        self, slot: Slot, rest: Template, text: str, words: Mapping[str, Word]
    ) -> Mapping[str, Word] | None:
        for word in self._candidates(slot, words):
            if text.startswith(word[slot.form]):
                found = self._match(rest, text.removeprefix(word[slot.form]), {**words, slot.name: word})
                if found is not None:
                    return found
        return None

    def _candidates(self, slot: Slot, words: Mapping[str, Word]) -> Sequence[Word]:
        if slot.name in words:
            return [words[slot.name]]
        return [word for word in self.lexicon[list_name(slot.name)] if word not in words.values()]
