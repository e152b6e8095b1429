"""Which files of a repository are taken as the model, and why."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from llama_herd.errors import ModelFileError
from llama_herd.model.hub.listing import HubFile, RepoListing, parsed
from llama_herd.model.hub.name import PART, HubName

#: Types of GGUF files that workers multiply as they are stored on any device, the most exact first.
PREFERRED_TYPES = ("Q8_0", "Q6_K", "Q4_K_M", "Q4_K_S", "Q4_0")

#: Most names that an error lists.
MAX_SHOWN = 12

_TYPE = re.compile(
    r"(?:^|[-._])(?P<type>(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4|BF16|F16|FP16|F32))$", re.IGNORECASE
)
#: GGUF files that are no model of text: what sees images, and statistics of a quantiser.
ASIDE = re.compile(r"mmproj|imatrix", re.IGNORECASE)

#: What peft keeps beside the weights of an adapter, such as a LoRA.
ADAPTER_NAME = "adapter_config.json"
_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_WHOLE = "model.safetensors"
#: Says which other files hold the weights of a folder.
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
#: Other files of a folder that a worker reads, where they are.
_BESIDE = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    ADAPTER_NAME,  # to say that it is left out
)
#: Chat templates that have names, as that for tools.
_TEMPLATE = re.compile(r"additional_chat_templates/[^/]+\.jinja")
#: Files of the modules of sentence-transformers, such as 1_Pooling and 2_Dense.
_OF_MODULE = re.compile(r"\d+_\w+/(?:config\.json|model\.safetensors)")


class Room(NamedTuple):
    """The bytes that weights may take on this machine, and where."""

    num_bytes: int
    where: str


@dataclass(frozen=True)
class ChosenFiles:
    """The files of a model, in the order in which they are fetched: its weights last."""

    name: str  # of the file that is opened, the first of a model in parts; empty: the folder
    files: tuple[HubFile, ...]
    why: str = ""

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def type(self) -> str:
        """The type of a GGUF file in capitals; empty: its name tells none."""
        match = _TYPE.search(PurePosixPath(PART.sub("", self.name)).stem)
        return match["type"].upper() if match else ""

    def has(self, name: str) -> bool:
        """Whether a file has this name; its folder may be left out."""
        return any(name in (file.name, PurePosixPath(file.name).name) for file in self.files)


#: Chooses the files of a repository that a name asks for.
Choose = Callable[[RepoListing, HubName, Callable[[], Room]], ChosenFiles]


def choose(listing: RepoListing, name: HubName, room: Callable[[], Room]) -> ChosenFiles:
    """Choose what a name asks for. Raises ModelFileError, which lists what there is.

    `room` is asked only where several files would do.
    """
    found = candidates(listing.files)
    if name.file or name.type:
        return _choose_named(found, name)
    if not found:
        return _choose_folder(listing)
    if len(found) == 1:
        return replace(found[0], why="the only GGUF model there")
    return _choose_best(found, name, room())


def choose_texts(listing: RepoListing, name: HubName, room: Callable[[], Room]) -> ChosenFiles:
    """Choose what tells of texts alone, of a model of any kind: its tokenizer, and what is read beside it.

    Of GGUF files, whose texts come with their weights, the smallest does. Raises ModelFileError.
    """
    files, found = {file.name: file for file in listing.files}, candidates(listing.files)
    if name.file or name.type or not (found or _TOKENIZER in files):
        return choose(listing, name, room)
    if _TOKENIZER not in files:
        return replace(min(found, key=lambda one: one.num_bytes), why="the smallest: all have the same texts")
    return ChosenFiles("", tuple(_beside(files)), "its texts alone, as a server has its weights")


def candidates(files: Iterable[HubFile]) -> list[ChosenFiles]:
    """The GGUF models among files; one that lacks a part is none."""
    groups: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda one: one.name):
        if file.name.lower().endswith(".gguf") and not ASIDE.search(file.name):
            groups.setdefault(PART.sub("", file.name), []).append(file)
    return [ChosenFiles(group[0].name, tuple(group)) for group in groups.values() if _is_whole(group)]


def _is_whole(group: Sequence[HubFile]) -> bool:
    parts = [PART.search(file.name) for file in group]
    counts = [int(part["count"]) for part in parts if part is not None]
    return len(group) == 1 if not counts else counts == [len(group)] * len(group)


def _choose_named(found: Sequence[ChosenFiles], name: HubName) -> ChosenFiles:
    """The model of the type that is named, or that has the file."""
    if name.file:
        wanted, why, several = name.file, "named", "several"
        fits = [one for one in found if one.has(name.file)]
    else:
        wanted, why = f"of type {name.type}", "the type that was named"
        fits = [one for one in found if one.type == name.type.upper()]
        several = f"{len(fits)} files"
    if len(fits) == 1:
        return replace(fits[0], why=why)
    shown = [one.name for one in found[:MAX_SHOWN]]
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    listed = f"name one of {', '.join(shown)}{more}" if shown else "it holds no GGUF file: name it alone"
    problem = f"{several} {wanted}" if fits else f"no GGUF file {wanted}"
    raise ModelFileError(f"{name.repo}: {problem}. Fix: {listed}")


def _choose_best(found: Sequence[ChosenFiles], name: HubName, room: Room) -> ChosenFiles:
    """The most exact model that there is room for; those first that are multiplied as they are stored."""
    fitting = [one for one in found if one.num_bytes <= room.num_bytes]
    if not fitting:
        least = min(found, key=lambda one: one.num_bytes)
        raise ModelFileError(
            f"{name.repo}: its smallest file, {least.name}, takes {size_text(least.num_bytes)}, and weights "
            f"may take {size_text(room.num_bytes)} ({room.where}). Fix: name a smaller model, or this file "
            f"all the same: {name.repo}:{least.name}"
        )
    best = min(fitting, key=_rank)
    how = "the most exact" if best.type in PREFERRED_TYPES else "the largest"
    why = f"{how} of {len(found)} that fits {size_text(room.num_bytes)} ({room.where})"
    return replace(best, why=why)


def _rank(one: ChosenFiles) -> tuple[int, int]:
    place = PREFERRED_TYPES.index(one.type) if one.type in PREFERRED_TYPES else len(PREFERRED_TYPES)
    return place, -one.num_bytes


def _choose_folder(listing: RepoListing) -> ChosenFiles:
    """The safetensors of the repository's top, with all that a worker reads beside them."""
    files = {file.name: file for file in listing.files}
    weights = [files[_WHOLE]] if _WHOLE in files else _shards(listing, files)
    if not weights and ADAPTER_NAME in files:
        raise ModelFileError(
            f"{listing.repo}: an adapter, which is no model by itself. Fix: name a repository of the merged "
            "model, or merge it by peft's merge_and_unload and name the folder"
        )
    if not weights or _CONFIG not in files:
        raise ModelFileError(
            f"{listing.repo}: holds neither GGUF files nor {_CONFIG} with safetensors beside it. "
            "Fix: name a repository with one of them"
        )
    if _TOKENIZER not in files:
        raise ModelFileError(
            f"{listing.repo}: holds no {_TOKENIZER}, which a worker needs. Fix: name a repository with one, "
            "or with GGUF files of the model"
        )
    of_modules = [file for name, file in sorted(files.items()) if _OF_MODULE.fullmatch(name)]
    return ChosenFiles("", (*_beside(files), *of_modules, *weights), "safetensors, as there is no GGUF file")


def _beside(files: Mapping[str, HubFile]) -> list[HubFile]:
    """What is read beside the weights of a folder."""
    names = [one for one in (_CONFIG, _TOKENIZER, *_BESIDE) if one in files]
    return [files[one] for one in (*names, *sorted(filter(_TEMPLATE.fullmatch, files)))]


def _shards(listing: RepoListing, files: dict[str, HubFile]) -> list[HubFile]:
    """The index of a model in several files, and the files that it names; none where one is missing.

    As long as it is not in the cache: the index alone. So it is where it cannot be read, which is told when
    the model is opened.
    """
    if INDEX not in files:
        return []
    named = _names_in_index(listing.folder / INDEX)
    return [files[name] for name in (INDEX, *sorted(named))] if named <= files.keys() else []


def _names_in_index(path: Path) -> set[str]:
    """The files that an index names; none where it is not here, or no index."""
    try:
        with path.open("rb") as file:
            weights = parsed(file.read(MAX_INDEX_BYTES)).get("weight_map")
    except OSError:
        return set()
    return set(map(str, weights.values())) if isinstance(weights, dict) else set()


def size_text(num_bytes: int) -> str:
    """A size in GB, MB or kB (powers of 1000), such as 1.2 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes / 1e3:,.1f} kB"
