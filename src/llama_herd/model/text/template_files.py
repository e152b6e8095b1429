"""The chat templates that a model's files hold, by their names."""

import re
from pathlib import Path
from typing import TypeVar

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.json_file import read_text
from llama_herd.model.reading.metadata import Metadata, quoted

#: The template that a model means when nobody names one, and the one it means for a chat with tools.
DEFAULT = "default"
TOOL_USE = "tool_use"

#: Most bytes of a template in a file of its own, as of one in a GGUF file.
MAX_TEMPLATE_BYTES = 1 << 20
MAX_TEMPLATES = 16

T = TypeVar("T")

_KEY = "tokenizer.chat_template"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def metadata_templates(metadata: Metadata) -> dict[str, str]:
    """The templates of a GGUF file: the default one under its key, others under keys beside it."""
    keys = [key for key in metadata if key == _KEY or key.startswith(f"{_KEY}.")]
    found = {key[len(_KEY) + 1 :] or DEFAULT: metadata.text(key) for key in keys}
    return _checked(found, metadata.source)


def folder_templates(folder: Path, config: Metadata) -> dict[str, str]:
    """The templates of a Hugging Face folder: its Jinja files, else those in tokenizer_config.json."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files[DEFAULT] = folder / "chat_template.jinja"
    if files:
        _checked(files, str(folder))
        return {name: read_text(path, MAX_TEMPLATE_BYTES) for name, path in files.items()}
    template = config.get("chat_template")
    if isinstance(template, str):
        return {DEFAULT: template}
    entries = template if isinstance(template, list) else []
    named = [Metadata(entry, config.source) for entry in entries if isinstance(entry, dict)]
    return _checked({entry.text("name"): entry.text("template") for entry in named}, config.source)


def _checked(templates: dict[str, T], source: str) -> dict[str, T]:
    """`templates` themselves. Raises ModelFileError when they are too many or one has a strange name."""
    if len(templates) > MAX_TEMPLATES:
        raise ModelFileError(f"{source}: has {len(templates)} chat templates, limit {MAX_TEMPLATES}.")
    wrong = next((name for name in templates if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise ModelFileError(
            f"{source}: has a chat template named {quoted(wrong)}. "
            "Give it a name of up to 64 letters, digits, dots, dashes and underscores."
        )
    return templates
