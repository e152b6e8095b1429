"""A model as a person names it: a GGUF file, or a Hugging Face folder. One opener for both."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf import GGUFFile
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.files.safetensors import INDEX_NAME, WHOLE_NAME
from llama_herd.model.files.safetensors_model import CONFIG_NAME, MERGING, SafetensorsModel
from llama_herd.model.hub.choice import ADAPTER_NAME, ASIDE
from llama_herd.model.hub.name import how_to_find, how_to_pull
from llama_herd.model.shape.pooling import Override
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer

_ACCEPTED = (
    "A model is a GGUF file, or a Hugging Face folder with config.json, tokenizer.json and model.safetensors"
)
#: Ends of the names of files in such a folder.
_PARTS = (".safetensors", ".json")


def read_tokens(path: str | PathLike[str]) -> tuple[Tokenizer, ControlTokens]:
    """The tokenizer of a model, or of a GGUF file that holds a vocabulary alone. Raises ModelFileError."""
    path = Path(path)
    with _naming_the_path(path):
        is_alone = path.is_file() and path.suffix not in _PARTS
    if not is_alone:
        with open_model(path) as model:
            tokenizer = model.read_tokenizer()
            return tokenizer, model.read_control_tokens(tokenizer)
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        return tokenizer, ControlTokens.from_metadata(file.metadata, tokenizer)


def open_model(path: str | PathLike[str], pooling: Override = "auto") -> ModelFile:
    """Open a GGUF file or a folder. Raises ModelFileError when it is missing, damaged or no known Llama.

    `pooling` is HERD_POOLING: what the model is for, whatever its files say.
    """
    path = Path(path)
    with _naming_the_path(path):
        if path.is_dir():
            _refuse_other_folder(path)
            return SafetensorsModel.open(path, pooling)
        if not path.exists():
            problem = f"{path}: no such file or folder. {_ACCEPTED}. {how_to_pull(path)}"
            raise ModelFileError(problem.rstrip())
        if path.suffix in _PARTS:
            raise ModelFileError(f"{path}: a part of a model. {_ACCEPTED}: give {path.parent}.")
        return GGUFModel.open(path, pooling)


def _refuse_other_folder(folder: Path) -> None:
    """Raise ModelFileError for a folder that is no model: one of GGUF files, or of an adapter alone."""
    if not any((folder / name).is_file() for name in (WHOLE_NAME, INDEX_NAME)):
        for path in sorted([*folder.glob("*.gguf"), *folder.glob("*/*.gguf")]):
            if not ASIDE.search(path.name):
                raise ModelFileError(f"{folder}: a folder of GGUF files. {_ACCEPTED}. Give {path}.")
        if (folder / ADAPTER_NAME).is_file():
            raise ModelFileError(f"{folder}: an adapter, which is no model by itself. {MERGING}.")
    if not (folder / CONFIG_NAME).is_file():
        problem = f"{folder}: a folder without {CONFIG_NAME}. {_ACCEPTED}. {how_to_find(folder)}"
        raise ModelFileError(problem.rstrip())


@contextmanager
def _naming_the_path(path: Path) -> Iterator[None]:
    """Raise ModelFileError where the system refuses: a name that is too long, a folder that is not ours."""
    try:
        yield
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}.") from error
