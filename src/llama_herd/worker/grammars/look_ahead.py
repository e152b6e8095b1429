"""Look-ahead at the beginning of a pattern, said by further patterns: llguidance has none."""

import re

_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?(?:[=!:]|<\w+>)|.", re.DOTALL)
#: One character, or one of a class; and any number of any.
_ONE = r"(?P<one>\[(?:\\.|[^\]\\])+\]|\\[dDwWsStnrfv]|\\[^A-Za-z0-9]|[^\\\[\](){}|*+?.^$])"
_ANY = r"(?:\.|\[\\s\\S\]|\[\\S\\s\]|\[\^\])\*\??"
#: What a text must not begin with, and what it matches then.
_NEGATED = {
    r"\$": "[^]",
    _ONE: "^$|^{other}",
    rf"{_ONE}\*\$": "{other}",
    rf"{_ONE}\+\$": "^$|{other}",
    _ANY + _ONE: "^{other}*$",
    rf"{_ANY}{_ONE}(?P=one)": "^(?:{one}?{other})*{one}?$",
}


def without_look_ahead(pattern: str) -> list[str]:
    """Patterns all of which a text matches only if it matches this one.

    Where a look-ahead is another one than a few that people write, it stays.
    """
    tokens = _TOKEN.findall(pattern.removeprefix("^"))
    if not any(one in ("(?=", "(?!") for one in tokens):
        return [pattern]
    found = list[str]()
    while tokens[:1] in (["(?="], ["(?!"]):
        end = _end(tokens)
        ahead = "".join(tokens[1:end])
        said = f"^(?:{ahead})" if tokens[0] == "(?=" else _negated(ahead.removeprefix("^"))
        if said is None or end == len(tokens):
            return [pattern]
        found.append(said)
        tokens = tokens[end + 1 :]
    rest = _without_idle_end(tokens)
    return [pattern] if "|" in _outside(rest) else [*found, "^" + "".join(rest)]


def _negated(ahead: str) -> str | None:
    """A pattern of the texts that do not begin with a pattern; None where it is none of the known ones."""
    for known, others in _NEGATED.items():
        if found := re.fullmatch(known, ahead):
            one = found.groupdict().get("one", "")
            return others.replace("{other}", _other(one)).replace("{one}", one)
    return None


def _other(one: str) -> str:
    """Any character but this one."""
    if one[:1] == "[":
        return f"[{one[2:]}" if one[1] == "^" else f"[^{one[1:]}"
    return f"[^{one}]"


def _without_idle_end(tokens: list[str]) -> list[str]:
    """A pattern without the group at its end that begins with no digit or some: then it matches anything.

    pydantic 2.12 writes it for a Decimal of so many digits.
    """
    for at, one in enumerate(tokens):
        is_end = one == "(?:" and at + _end(tokens[at:]) == len(tokens) - 1
        if is_end and re.match(r"\\d\{0,\d+\}\|", "".join(tokens[at + 1 :])):
            return tokens[:at]
    return tokens


def _end(tokens: list[str]) -> int:
    """Where the group ends that begins here."""
    depth = 0
    for at, one in enumerate(tokens):
        depth += (one[0] == "(") - (one == ")")
        if depth == 0:
            return at
    return len(tokens)


def _outside(tokens: list[str]) -> list[str]:
    """Those that stand in no group."""
    depth, found = 0, list[str]()
    for one in tokens:
        depth += (one[0] == "(") - (one == ")")
        if depth == 0:
            found.append(one)
    return found
