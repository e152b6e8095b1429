"""The chat templates that a model's files hold, by their names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

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


def metadata_templates(metadata: Metadata) -> tuple[dict[str, str], list[str]]:
    """The templates of a GGUF file: the default one under its key, others under keys beside it.

    With complaints of those that are left out.
    """
    keys = [key for key in metadata if key == _KEY or key.startswith(f"{_KEY}.")]
    return _usable({key[len(_KEY) + 1 :] or DEFAULT: metadata[key] for key in keys}, str, metadata.source)


def folder_templates(folder: Path, config: Metadata) -> tuple[dict[str, str], list[str]]:
    """The templates of a Hugging Face folder: its Jinja files, else those in tokenizer_config.json.

    With complaints of those that are left out.
    """
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files[DEFAULT] = folder / "chat_template.jinja"
    if files:
        usable, complaints = _usable(files, Path, str(folder))
        return {name: read_text(path, MAX_TEMPLATE_BYTES) for name, path in usable.items()}, complaints
    template = config.get("chat_template")
    if isinstance(template, str):
        return {DEFAULT: template}, []
    entries = template if isinstance(template, list) else []
    named = [Metadata(entry, config.source) for entry in entries if isinstance(entry, dict)]
    return _usable({entry.text("name"): entry.get("template") for entry in named}, str, config.source)


def _usable(stated: Mapping[str, object], kind: type[T], source: str) -> tuple[dict[str, T], list[str]]:
    """Templates that jobs can name, no more than the limit, and a complaint if others are left out."""
    names = sorted(stated, key=lambda name: name not in (DEFAULT, TOOL_USE))
    found = {name: one for name in names if isinstance(one := stated[name], kind) and _NAME.fullmatch(name)}
    usable = {name: found[name] for name in [*found][:MAX_TEMPLATES]}
    left_out = [name for name in names if name not in usable]
    if not left_out:
        return usable, []
    problem = (
        f"{len(left_out)} of {len(names)} chat templates are left out, {quoted(left_out[0])} first: "
        f"{MAX_TEMPLATES} are taken at most, each a text by a name of up to 64 letters, digits, dots, "
        "dashes and underscores"
    )
    return usable, [f"{source}: {problem}"]
