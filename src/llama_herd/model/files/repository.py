"""A repository of Hugging Face as people name it, and the command that fetches it."""

import re
from pathlib import Path

#: With or without the site (in a Path `https://` has one slash); llama.cpp and Ollama add the file's type.
_NAMED = re.compile(
    r"(?P<site>(?:hf:/+|(?:https?:/+)?(?:www\.)?(?:hf\.co|huggingface\.co)/+)?)"
    r"(?P<repository>[\w-][\w.-]*/(?P<name>[\w-][\w.-]*))"
    r"(?:/(?:tree|blob|resolve|raw)/[^/]+(?:/(?P<file>[^?:]+))?)?"
    r"(?::(?P<type>[\w.-]+))?(?:\?.*)?"
)
#: Ends of the names of files, where no site is said.
_FILES = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth")


def how_to_fetch(path: Path) -> str:
    """The command that fetches a repository, if that is what a path names at which there is nothing."""
    match = _NAMED.fullmatch(str(path))
    if match is None or not (match["site"] or _may_be_repository(path)):
        return ""
    which = _which(match["file"], match["type"])
    return f"To fetch it: hf download {match['repository']}{which} --local-dir {match['name']}."


def _may_be_repository(path: Path) -> bool:
    """Whether a name of two parts is not rather that of a file that is missing."""
    return not path.parent.exists() and not path.name.lower().endswith(_FILES)


def _which(file: str | None, type: str | None) -> str:
    """The arguments that choose among the files: files are named in capitals or in small letters."""
    if file:
        return f" {file}"
    if not type or type == "latest":
        return ""
    return f" --include '*{type.upper()}*' --include '*{type.lower()}*'"
