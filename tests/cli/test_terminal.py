"""What comes from outside reaches a terminal without what moves its cursor, or turns or hides its text."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from unicodedata import category

import pytest

import llama_herd.cli
from llama_herd.cli.terminal import harmless, say, show
from llama_herd.cli.transcript import Transcript
from llama_herd.counted import counted
from llama_herd.tasks.protocol.events import End, Failure

CLI = Path(llama_herd.cli.__file__).parent
#: Who decides what is printed, and the entry, where nothing of this may be imported yet.
PRINTERS = ("terminal.py", "streams.py", "__init__.py")
#: Calls that make text harmless, and text that is ours.
HARMLESS = ("harmless", "dumps", "install_command", "own_version", "len")

EVIL = "a\u202eb\x1b[2J\u2066c\u200b\ufeff\u2028d\u00ade\U000e0041"


def test_one_is_counted_as_one() -> None:
    assert [counted(number, "job") for number in (0, 1, 2, 2000)] == [
        "0 jobs",
        "1 job",
        "2 jobs",
        "2,000 jobs",
    ]


@pytest.mark.long
def test_of_all_characters_those_stay_that_are_seen() -> None:
    gone = {chr(code) for code in range(sys.maxunicode + 1) if not harmless(chr(code))}
    unseen = {
        chr(code) for code in range(sys.maxunicode + 1) if category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")
    }
    assert unseen - gone == set("\t\n\u200c\u200d")
    assert gone <= unseen


def test_emoji_and_scripts_that_join_letters_stay() -> None:
    for text in ("👩‍🚀", "می‌خواهم", "क्‍ष", "日本語", "e\u0301", "🏳️‍🌈"):
        assert harmless(text) == text


def test_a_terminal_gets_no_more_than_is_seen_and_a_pipe_gets_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(EVIL)
    say(EVIL)
    out, err = capsys.readouterr()
    assert out == EVIL + "\n"
    assert err == "herd: ab[2Jcde\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show(EVIL)
    assert capsys.readouterr().out == "ab[2Jcde\n"


def test_the_error_of_a_job_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    error = Failure(code=f"x{EVIL}", message=EVIL)
    end = End(seq=1, job="j", epoch=1, finish_reason="error", n=0, attempts=1, error=error)
    Transcript("text").follow([end])
    assert capsys.readouterr().err.count("ab[2Jcde") == 2


def prints(path: Path) -> Iterator[ast.Call]:
    """The calls that print without the functions above."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and _name(node.func) in ("print", "echo"):
            yield node


def is_harmless(value: ast.expr) -> bool:
    """Whether an expression holds nothing but words of the code, figures, and what was made harmless."""
    match value:
        case ast.Constant():
            return True
        case ast.JoinedStr():
            return all(map(is_harmless, value.values))
        case ast.FormattedValue(format_spec=ast.JoinedStr(values=[ast.Constant(value=str(form))])):
            return form.endswith(("d", "f", ",", "%")) or is_harmless(value.value)
        case ast.FormattedValue() | ast.Starred():
            return is_harmless(value.value)
        case ast.BinOp():
            return is_harmless(value.left) and is_harmless(value.right)
        case ast.IfExp():
            return is_harmless(value.body) and is_harmless(value.orelse)
        case ast.Call():
            return _name(value.func) in HARMLESS
        case ast.Name():
            return value.id.startswith("num")
    return False


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


@pytest.mark.parametrize("path", sorted(CLI.rglob("*.py")), ids=lambda path: str(path.relative_to(CLI)))
def test_every_print_is_of_what_is_harmless(path: Path) -> None:
    """Tables, bars and what is printed by `say` and `show` make it so themselves."""
    if path.name in PRINTERS:
        return
    found = [
        f"{path.relative_to(CLI)}:{call.lineno}: {ast.unparse(call)}"
        for call in prints(path)
        if _name(call.func) == "echo" or isinstance(call.func, ast.Name)
        if not all(map(is_harmless, call.args))
    ]
    assert not found, "\n".join(found)
