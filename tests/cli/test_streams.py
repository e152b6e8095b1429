"""Commands whose output, input, language or folder is not as it should be: one line and an exit code."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.herd_command import COMMAND, environment, invoke

pytestmark = pytest.mark.program

#: One command for each way to write: typer's echo, print, rich, and a text as it grows.
COMMANDS = {
    "help": "generate --help",
    "settings": "settings",
    "status": "status",
    "text": "generate --local --text --max-tokens 4 hi",
}

LOST = "herd: cannot write to standard output: "


def shell(
    arguments: str, redirection: str, folder: Path, leave: str = "", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    line = f'{leave}exec "$@" {arguments} {redirection}'
    command = ["bash", "-c", line, "herd", *COMMAND]
    return subprocess.run(command, cwd=folder, env=environment(**variables), capture_output=True, timeout=60)


@pytest.mark.redis
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(line, id=name, marks=[pytest.mark.slow] * (name != "status"))
        for name, line in COMMANDS.items()
    ],
)
def test_a_full_or_closed_output_is_one_line_and_a_closed_complaint_none(
    arguments: str, redis_url: str, tmp_path: Path
) -> None:
    full, closed, deaf, mute = (
        shell(arguments, redirection, tmp_path, HERD_REDIS_URL=redis_url)
        for redirection in ("</dev/null >/dev/full", "<&- >&-", "2>&-", ">&- 2>&-")
    )
    assert (full.returncode, full.stderr.decode()) == (1, f"{LOST}No space left on device\n")
    assert (closed.returncode, closed.stderr.decode()) == (1, f"{LOST}Bad file descriptor\n")
    assert (deaf.returncode, deaf.stderr) == (0, b"")
    assert deaf.stdout
    assert (mute.returncode, mute.stdout, mute.stderr) == (1, b"", b"")


@pytest.mark.parametrize(
    "redirection",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in ("2>&-", "2>/dev/full")), ">&- 2>/dev/full"],
)
def test_a_complaint_that_cannot_be_written_is_still_an_exit_code(redirection: str, tmp_path: Path) -> None:
    done = shell("settings", redirection, tmp_path, HERD_SLOTS="0")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_a_warning_that_cannot_be_written_ends_no_command(tmp_path: Path) -> None:
    warned, unwarned = (shell("settings", to, tmp_path, HERD_SLOTZ="1") for to in ("", "2>/dev/full"))
    assert b"HERD_SLOTZ is not a setting" in warned.stderr
    assert (unwarned.returncode, unwarned.stdout) == (0, warned.stdout)


def test_a_reader_that_leaves_is_no_complaint(tmp_path: Path) -> None:
    assert shell("settings", "| true", tmp_path).stderr == b""


#: A locale of ASCII alone, without what Python does by itself to read UTF-8 all the same.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.redis
def test_text_is_utf8_where_the_locale_knows_no_letters(redis_url: str, tmp_path: Path) -> None:
    done = shell("settings", "", tmp_path, HERD_MODEL="Ü-☃.gguf", **ASCII)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "HERD_MODEL=Ü-☃.gguf\n" in done.stdout.decode()
    absent = shell("batch Ü-☃.txt -o out.jsonl", "", tmp_path, HERD_REDIS_URL=redis_url, **ASCII)
    assert "Ü-☃.txt" in absent.stderr.decode()


def test_what_the_output_has_no_bytes_for_is_shown_by_its_code(tmp_path: Path) -> None:
    done = shell("settings", "", tmp_path, PYTHONIOENCODING="latin-1", HERD_MODEL="Ü-☃.gguf")
    assert b"HERD_MODEL=\xdc-\\u2603.gguf\n" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["tokenize", "\udcff"], ["generate", "\udcff"], ["webhooks", "retry", "\udcff"]]
    + [["generate", option, "\udcff", "x"] for option in ("--system", "--stop", "--idempotency-key")],
    ids=" ".join,
)
def test_what_is_no_utf8_is_refused_by_name(arguments: list[str]) -> None:
    """Python makes such characters of bytes that are no text."""
    done = invoke(*arguments)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("is not UTF-8 text: character 0 is invalid")


def test_bytes_that_are_no_text_are_refused_on_the_command_line(tmp_path: Path) -> None:
    done = shell("generate $'\\xff'", "", tmp_path)
    assert done.returncode == 2
    assert done.stderr.decode().endswith("is not UTF-8 text: character 0 is invalid\n")


def test_an_input_that_has_no_end_is_refused(tmp_path: Path) -> None:
    done = shell("tokenize -", "</dev/zero", tmp_path)
    assert (done.returncode, done.stderr.decode().startswith("herd: standard input is longer than")) == (
        2,
        True,
    )


@pytest.mark.parametrize("arguments", ["settings", "generate --local hi"])
def test_a_folder_that_is_gone_is_named(arguments: str, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    done = shell(arguments, "", folder, leave=f"rmdir {folder} && ")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"herd: the current folder was deleted. Fix: cd to one that exists\n"
