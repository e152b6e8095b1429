"""The weight files of a Hugging Face folder: one, or the shards that an index names."""

from pathlib import Path

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.json_file import read_json
from llama_herd.model.reading.metadata import Metadata, quoted

WHOLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 1_024
#: A file's name has no more, and it is looked for.
MAX_NAME_CHARS = 200

#: Weights as pickles, which can run code when they are read.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def how_to_complete(folder: Path) -> str:
    """The command that completes a folder; what is there already it does not fetch again."""
    return f"Fetch what is missing: hf download OWNER/NAME --local-dir {folder}."


def weight_paths(folder: Path) -> list[Path]:
    """The files that hold a folder's weights. Raises ModelFileError, which names what is missing."""
    if (folder / WHOLE_NAME).is_file():
        return [folder / WHOLE_NAME]
    if (folder / INDEX_NAME).is_file():
        return _shard_paths(folder / INDEX_NAME)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise ModelFileError(
            f"{folder}: {pickles[0]} is a pickle, which can run code when it is read, and is never opened. "
            "Fetch the model's safetensors files, or load it with transformers and call `save_pretrained`."
        )
    raise ModelFileError(f"{folder}: holds neither {WHOLE_NAME} nor {INDEX_NAME}. {how_to_complete(folder)}")


def _shard_paths(index_path: Path) -> list[Path]:
    """The files that an index names, all of which must be there."""
    index = read_json(index_path, MAX_INDEX_BYTES)
    names = sorted({str(name) for name in index.nested("weight_map").values()})
    if not 1 <= len(names) <= MAX_SHARDS:
        raise index.error("weight_map", f"names {len(names)} files, allowed are 1 to {MAX_SHARDS}")
    paths = [index_path.with_name(_checked(name, index)) for name in names]
    for path in paths:
        if not path.is_file():
            raise ModelFileError(
                f"{path}: missing, {INDEX_NAME} names {len(names)} files. {how_to_complete(path.parent)}"
            )
    return paths


def _checked(name: str, index: Metadata) -> str:
    """A shard's name. Raises ModelFileError unless it is a plain name, as it must lie in the same folder."""
    if Path(name).name != name or not name.endswith(".safetensors") or len(name) > MAX_NAME_CHARS:
        raise index.error("weight_map", f"names {quoted(name)}, which is no safetensors file of this folder")
    return name
