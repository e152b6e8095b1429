"""The words of the tales and exercises: the lists of words.txt, and those that a rule makes."""

from collections.abc import Sequence
from pathlib import Path

from training.notation import Lexicon, Word

_FILE = Path(__file__).with_name("words.txt")
_MONTHS = "January February March April May June July August September October November December"
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_LETTERS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"
_STEPS = "twos threes fours fives sixes sevens eights nines tens"


def _word(entry: str, form: str) -> Word:
    """A word of words.txt: "fox", or "cow = moo" with the name of the form after the sign."""
    text, _, other = entry.partition(" = ")
    article = "an" if text[0].lower() in "aeiou" else "a"
    forms = _pronouns(other) if form == "he" else {form: other} if form else {}
    return {"": text, "a": f"{article} {text}", **forms}


def _pronouns(he: str) -> Word:
    him, his = ("him", "his") if he == "he" else ("her", "her")
    return {"he": he, "He": he.capitalize(), "him": him, "his": his, "His": his.capitalize()}


def _read_lists(source: str) -> dict[str, Sequence[Word]]:
    """The lists of words.txt, one a line; an indented line belongs to the one before it."""
    lists: dict[str, Sequence[Word]] = {}
    for line in source.replace("\n    ", "").splitlines():
        header, _, entries = line.partition(": ")
        name, _, form = header.partition(", ")
        lists[name] = [_word(entry, form) for entry in entries.split("|")]
    return lists


def _run(name: str, parts: Sequence[str]) -> Word:
    """A run of names or numbers: its first three, and how it goes on."""
    return {"": name, "head": ", ".join(parts[:3]), "tail": ", ".join(parts[3:]), "last": parts[-1]}


def _cycle(names: str) -> Sequence[Word]:
    """Once around a cycle, from each beginning."""
    parts = names.split()
    return [_run(name, parts[at:] + parts[:at]) for at, name in enumerate(parts)]


def _letters() -> Sequence[Word]:
    """Twelve letters, from each beginning that has so many after it."""
    letters = _LETTERS.split()
    return [_run(letters[at], letters[at : at + 12]) for at in range(len(letters) - 11)]


def _counts() -> Sequence[Word]:
    """The first ten multiples of two to ten."""
    return [
        _run(name, [str(step * n) for n in range(1, 11)]) for step, name in enumerate(_STEPS.split(), start=2)
    ]


def _sums() -> Sequence[Word]:
    pairs = [(a, b) for a in range(2, 13) for b in range(2, 10)]
    return [{"": f"{a} and {b}", "a": str(a), "b": str(b), "total": str(a + b)} for a, b in pairs]


def read_lexicon() -> Lexicon:
    """All lists, by the name that a slot calls them."""
    lists = _read_lists(_FILE.read_text(encoding="utf-8"))
    return lists | {
        "friend": lists["hero"],
        "sum": _sums(),
        "count": _counts(),
        "letter": _letters(),
        "weekday": _cycle(_WEEKDAYS),
        "month": _cycle(_MONTHS),
    }


LEXICON: Lexicon = read_lexicon()
