"""A model of Hugging Face as people name it: a repository, and which of its files."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from llama_herd.errors import ModelFileError

#: A setting that begins with it names a model of Hugging Face, not a path.
SCHEME = "hf:"

#: With or without the site (in a Path `https://` has one slash); after a colon a file, or the type of one.
_NAMED = re.compile(
    r"(?P<site>(?:hf:/*|(?:https?:/+)?(?:www\.)?(?:hf\.co|huggingface\.co)/+)?)"
    r"(?P<repo>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})/?"
    r"(?:/(?:tree|blob|resolve|raw)/[^/]+(?:/(?P<path>[^?:]+))?)?"
    r"(?::(?P<which>[\w./ +-]{1,255}))?(?:\?.*)?",
    re.ASCII,
)
#: A repository's folder in the cache.
_CACHED = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)", re.ASCII)
#: Ends of the names of files, where no site is said.
_FILES = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth")

#: The end of the name of one part of a model.
PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})(?=\.gguf$|$)", re.IGNORECASE)


@dataclass(frozen=True)
class HubName:
    """A repository, and what is wanted of it; with neither file nor type, what suits the machine."""

    repo: str
    file: str = ""
    type: str = ""  # of the weights, such as Q4_K_M

    @classmethod
    def parse(cls, text: str) -> Self:
        """A name, with `hf:` or without. Raises ModelFileError, with the allowed forms."""
        match = _NAMED.fullmatch(text)
        if match is None:
            raise ModelFileError(
                f"{text}: no name of a model at Hugging Face. Fix: OWNER/NAME, OWNER/NAME:FILE.gguf, or "
                "OWNER/NAME:TYPE with a type such as Q4_K_M"
            )
        return cls._from_match(match)

    @classmethod
    def from_setting(cls, model: Path) -> Self | None:
        """The name that a setting gives as `hf:OWNER/NAME`; None for a path. Raises ModelFileError."""
        text = str(model)
        return cls.parse(text) if text.startswith(SCHEME) else None

    @classmethod
    def from_cache(cls, path: Path) -> Self | None:
        """The repository in whose part of the cache a path lies; None: it lies in none."""
        found = filter(None, map(_CACHED.fullmatch, reversed(path.absolute().parts)))
        match = next(found, None)
        return None if match is None else cls(f"{match['owner']}/{match['name']}")

    @classmethod
    def _from_match(cls, match: re.Match[str]) -> Self:
        which = match["path"] or match["which"] or ""
        is_file = which.lower().endswith(_FILES)
        kind = "" if is_file or which.lower() == "latest" else which
        return cls(match["repo"], which if is_file else "", kind)

    def __str__(self) -> str:
        """The name without `hf:`, as people say it."""
        which = self.file or self.type
        return f"{self.repo}:{which}" if which else self.repo

    @property
    def served_name(self) -> str:
        """The name that jobs call the model by; the same on every machine, whichever file each takes."""
        if self.file:
            return PART.sub("", PurePosixPath(self.file).stem)
        return re.sub(r"-gguf$", "", self.repo.partition("/")[2], flags=re.IGNORECASE)


def how_to_find(folder: Path) -> str:
    """How to name the model in whose part of the cache a folder lies; empty if it lies in none."""
    name = HubName.from_cache(folder)
    return "" if name is None else f"Give {SCHEME}{name}, or the folder of a commit in snapshots."


def how_to_pull(path: Path) -> str:
    """How to get a model of Hugging Face, if that is what a path names at which there is nothing."""
    match = _NAMED.fullmatch(str(path))
    is_file = path.parent.exists() or path.name.lower().endswith(_FILES)  # rather one that is missing
    if match is None or (is_file and not match["site"]):
        return ""
    name = HubName._from_match(match)
    return f"To fetch it: herd pull {name}, or give hf:{name} as the model."
