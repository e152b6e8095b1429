"""The texts of a model of any family: its tokenizer and what goes with it, whatever its weights are."""

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf import GGUFFile
from llama_herd.model.files.safetensors_model import CONFIG_NAME, MAX_CONFIG_BYTES, TOKENIZER_NAME
from llama_herd.model.hub.name import how_to_pull
from llama_herd.model.reading.json_file import read_json
from llama_herd.model.shape.purpose import Generates, Purpose
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.recommended_sampling import folder_sampling, metadata_sampling
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from llama_herd.model.text.vocabulary import MAX_TOKENS

_NEEDED = f"Give a GGUF file, or a folder with {TOKENIZER_NAME}"


@dataclass(frozen=True)
class ModelTexts:
    """What a model's files say of texts."""

    tokenizer: Tokenizer
    control_tokens: ControlTokens
    sampling: dict[str, float]
    purpose: Purpose = field(default_factory=Generates)

    def read_control_tokens(self, tokenizer: Tokenizer) -> ControlTokens:
        """The names of its control tokens, which chat templates write."""
        return self.control_tokens


def open_texts(path: str | PathLike[str]) -> ModelTexts:
    """Read the texts of a GGUF file or of a folder; no weight has to be there. Raises ModelFileError."""
    path = Path(path)
    try:
        if (path / TOKENIZER_NAME).is_file():
            return _of_folder(path)
        if path.is_file():
            return _of_gguf(path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}.") from error
    problem = f"a folder without {TOKENIZER_NAME}" if path.is_dir() else "no such file or folder"
    raise ModelFileError(f"{path}: {problem}. {_NEEDED}. {how_to_pull(path)}".rstrip())


def _of_folder(folder: Path) -> ModelTexts:
    file = TokenizerJson.open(folder / TOKENIZER_NAME, _num_rows(folder))
    return ModelTexts(Tokenizer.from_json(file), ControlTokens.from_json(file), folder_sampling(folder))


def _num_rows(folder: Path) -> int | None:
    """Rows of the model's head, which may have more than its tokenizer has tokens; None: nothing says it."""
    if not (folder / CONFIG_NAME).is_file():
        return None
    config = read_json(folder / CONFIG_NAME, MAX_CONFIG_BYTES)
    texts = config.nested("text_config", {})  # beside what sees and hears
    found = config.get("vocab_size", texts.get("vocab_size"))
    return found if isinstance(found, int) and 0 < found <= MAX_TOKENS else None


def _of_gguf(path: Path) -> ModelTexts:
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        control_tokens = ControlTokens.from_metadata(file.metadata, tokenizer)
        return ModelTexts(tokenizer, control_tokens, metadata_sampling(file.metadata))
