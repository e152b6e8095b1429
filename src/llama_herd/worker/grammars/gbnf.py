"""Grammars in GBNF, llama.cpp's notation, as Lark."""

import re

_IS_GBNF = re.compile(r"(?m)^[ \t]*root[ \t]*::=")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNT = re.compile(r"([*+?])|\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}")
_CHAR = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt\"\\\[\]]))|([^\\])", re.DOTALL
)
#: A rule's name in what is read of another one: all that could be taken for it is escaped.
_USE = re.compile("<(.*?)>")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
#: Groups within one another.
MOST_NESTED = 100


def is_gbnf(text: str) -> bool:
    """Whether a grammar is in GBNF: it has a rule named root."""
    return _IS_GBNF.search(text) is not None


def gbnf_to_lark(text: str) -> str:
    """The grammar in Lark. Raises ValueError, which quotes nothing of it."""
    rules = _Reader(text).rules()
    uses = {name: set(_USE.findall(rule)) for name, rule in rules.items()}
    if not rules.keys() >= {"root"}.union(*uses.values()):
        raise ValueError("a rule that is used is not defined")
    tokens = _tokens(uses)
    names = {name: f"{'T' if name in tokens else 'r'}{number}" for number, name in enumerate(rules)}
    lines = [f"{names[name]}: {_USE.sub(lambda use: names[use[1]], rule)}" for name, rule in rules.items()]
    return "\n".join(["%llguidance {}", f"start: {names['root']}", *lines])


def _tokens(uses: dict[str, set[str]]) -> set[str]:
    """The rules that never come back to themselves: each is one expression."""
    found = set[str]()
    while more := {name for name, used in uses.items() if name not in found and used <= found}:
        found |= more
    return found


class _Reader:
    """Reads rules as expressions of Lark, but for the names of rules in them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._nested = 0

    def rules(self) -> dict[str, str]:
        found = dict[str, str]()
        self._pass(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._expect(_NAME, "a rule's name")
            self._pass(_SPACE)
            self._expect(re.compile("::="), "::=")
            self._pass(_SPACE_AND_LINES)
            if name in found:
                raise self._error("a rule is defined twice")
            found[name] = self._alternatives()
            self._pass(_SPACE)
            if self._at < len(self._text):
                self._expect(re.compile(r"[\r\n]"), "the end of the line")
            self._pass(_SPACE_AND_LINES)
        return found

    def _alternatives(self) -> str:
        found = [self._sequence()]
        while self._is_at("|"):
            self._at += 1
            self._pass(_SPACE_AND_LINES)
            found.append(self._sequence())
        return " | ".join(found)

    def _sequence(self) -> str:
        """What follows one another up to a bar, a closing parenthesis or the end of the rule."""
        found = list[str]()
        while self._at < len(self._text) and self._text[self._at] not in "|)\r\n":
            found.append(self._counted(self._item()))
            self._pass(_SPACE_AND_LINES if self._nested else _SPACE)
        return " ".join(found) or '""'

    def _item(self) -> str:
        if self._is_at('""'):
            self._at += 2
            return '""'
        if self._is_at('"'):
            return f"/{self._literal()}/"
        if self._is_at("["):
            return f"/{self._class()}/"
        if self._is_at("("):
            return self._group()
        if self._is_at("."):
            self._at += 1
            return "/(?s:.)/"
        name = self._expect(_NAME, "a literal, a class, a group or a rule's name")
        return f"<{name}>"

    def _group(self) -> str:
        self._at += 1
        self._nested += 1
        if self._nested > MOST_NESTED:
            raise self._error("groups are nested too deeply")
        self._pass(_SPACE_AND_LINES)
        found = self._alternatives()
        self._expect(re.compile(r"\)"), "a closing parenthesis")
        self._nested -= 1
        return f"({found})"

    def _counted(self, item: str) -> str:
        """An item, as often as it says."""
        self._pass(_SPACE)
        while found := _COUNT.match(self._text, self._at):
            self._at = found.end()
            sign, low, comma, high = found.groups()
            most = low if comma is None else high
            if sign is None and most and int(most) < int(low):
                raise self._error("a count ends below its beginning")
            if sign is None and most and int(most) == 0:
                item = '""'
            else:
                item = f"({item}){sign or f'{{{int(low)},{most and int(most)}}}'}"
        return item

    def _literal(self) -> str:
        self._at += 1
        chars = list[str]()
        while not self._is_at('"'):
            chars.append(_plain(self._char()))
        self._at += 1
        return "".join(chars)

    def _class(self) -> str:
        self._at += 1
        is_negated = self._is_at("^")
        self._at += is_negated
        parts = list[str]()
        while not self._is_at("]"):
            first = self._char()
            if self._is_at("-") and not self._text.startswith("-]", self._at):
                self._at += 1
                parts.append(f"{_plain(first)}-{_plain(self._char())}")
            else:
                parts.append(_plain(first))
        self._at += 1
        if not parts:
            raise self._error("a class is empty")
        return f"[{'^' if is_negated else ''}{''.join(parts)}]"

    def _char(self) -> str:
        """A character of a literal or a class."""
        if self._at >= len(self._text):
            raise self._error("Unexpected end of input")
        found = _CHAR.match(self._text, self._at)
        if found is None:
            raise self._error("a backslash and what follows it mean nothing")
        self._at = found.end()
        code = found[1] or found[2] or found[3]
        if code and not (int(code, 16) <= 0x10FFFF and not 0xD800 <= int(code, 16) <= 0xDFFF):
            raise self._error("no character has this code")
        char = chr(int(code, 16)) if code else found[4] or found[5]
        return _CONTROLS.get(char, char) if found[4] else char

    def _pass(self, kind: re.Pattern[str]) -> None:
        found = kind.match(self._text, self._at)
        self._at = self._at if found is None else found.end()

    def _expect(self, kind: re.Pattern[str], what: str) -> str:
        found = kind.match(self._text, self._at)
        if found is None:
            raise self._error(f"there must be {what}")
        self._at = found.end()
        return found[0]

    def _is_at(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {problem}")


def _plain(char: str) -> str:
    """A character in an expression."""
    return char if char.isascii() and char.isalnum() else f"\\u{{{ord(char):x}}}"
