"""The kinds of errors about model files, so that thousands can be counted."""

import re
from pathlib import Path

#: What the texts of a kind have in common, and what it is called; the first that fits counts.
KINDS = {
    r"needs \d+ bytes, \d+ are left": "ends too soon",
    r"ends at (data )?byte|bytes follow the last": "ends too soon, or too late",
    r"is over the limit|longer than the limit|limit \d+": "over a limit",
}


def kind_of(message: str, path: Path) -> str:
    text = message.replace(str(path), "PATH").replace(str(path.parent), "DIR")
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "_", text)
    text = re.sub(r"\d+", "N", text)
    return re.sub(r"\[.*\]", "[]", text)[:120]
