"""A worker's model where its settings name one of Hugging Face."""

import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from llama_herd.counted import counted
from llama_herd.errors import ModelFileError, SettingsError
from llama_herd.extras import missing_modules, need_extra
from llama_herd.model.hub.choice import Choose, ChosenFiles, Room, choose, choose_texts, size_text
from llama_herd.model.hub.fetch import HubModel, fetch_model, find_model
from llama_herd.model.hub.name import HubName
from llama_herd.worker.loading.device import card_gb, on_device
from llama_herd.worker.loading.loading_bar import loading_bar
from llama_herd.worker.settings import WorkerSettings

#: The most of the memory for a model that its weights may take: the rest is for the cache and the steps.
WEIGHTS_PART = 2 / 3


def with_model_here(settings: WorkerSettings) -> WorkerSettings:
    """The settings with the path of their model; one that `hf:` names is fetched if it is not in the cache.

    What is in the cache is taken as it is, without asking anybody. Raises BadInput, or HubUnavailable.
    """
    name = HubName.from_setting(settings.model)
    if name is None:
        return settings
    return if_model_here(settings) or _with_path(fetch_with_bar(name, settings), settings)


def if_model_here(settings: WorkerSettings) -> WorkerSettings | None:
    """The settings with the path of their model; None: it is not in the cache."""
    name = HubName.from_setting(settings.model)
    if name is None:
        return settings
    need_extra("hub", f"HERD_MODEL=hf:{name}")
    found = find_model(name, lambda: weights_room(settings), _choice(settings))
    return None if found is None else _with_path(found, settings)


def _choice(settings: WorkerSettings) -> Choose:
    """Which files of a repository are taken: behind a server nobody here reads weights."""
    return choose_texts if settings.is_foreign else choose


def _with_path(found: HubModel, settings: WorkerSettings) -> WorkerSettings:
    own = {"model": found.path, "served_model_name": settings.served_model}
    return settings.model_copy(update=own)


def fetch_with_bar(name: HubName, settings: WorkerSettings) -> HubModel:
    """Fetch a model, with a bar on a terminal, and say on standard error what comes, and why that."""

    def tell(choice: ChosenFiles) -> None:
        what = choice.name or counted(len(choice.files), "file")
        line = f"herd: fetching {what} of {name.repo}, {size_text(choice.num_bytes)}: {choice.why}"
        print(line, file=sys.stderr, flush=True)

    with loading_bar(f"fetching {name}") as note:
        room, choose = partial(weights_room, settings), _choice(settings)
        return fetch_model(name, room, tell, note, choose, partial(_refuse_early, settings))


def _refuse_early(settings: WorkerSettings, path: Path, name: str) -> None:
    """Raise ModelFileError for a folder, or the first bytes of a GGUF file, of a model that no worker serves.

    A header that is damaged, or still longer, is told of when the model is opened.
    """
    if missing_modules("worker") or settings.is_foreign:  # a machine that only fetches; a server's own model
        return
    from llama_herd.model.config import LlamaConfig
    from llama_herd.model.files.gguf import Header, read_header
    from llama_herd.model.files.safetensors_model import CONFIG_NAME, MAX_CONFIG_BYTES
    from llama_herd.model.files.tensor_file import OpenFile
    from llama_herd.model.reading.json_file import read_json
    from llama_herd.model.reading.metadata import Metadata

    if path.is_dir():
        config_json = read_json(path / CONFIG_NAME, MAX_CONFIG_BYTES)
        LlamaConfig.from_json(config_json, config_json.source)
        return
    header = Header()
    with closing(OpenFile(path)) as file, suppress(ModelFileError):
        read_header(file, header)
    if header.data_start:
        LlamaConfig.from_metadata(Metadata(header.metadata, name))


def weights_room(settings: WorkerSettings) -> Room:
    """The memory that weights may take on the device of these settings. Raises BadInput."""
    need_extra("worker", "a model that is chosen by this machine's memory, without :FILE.gguf or :TYPE,")
    from llama_herd.worker.loading.memory_plan import PROCESS_BYTES, allowed_bytes

    settings = on_device(settings)
    if settings.device == "cpu":
        free = allowed_bytes(settings, "cpu")
    else:  # torch is not imported for it
        free = int(settings.memory_share * card_gb(settings.device) * 1e9)
        if not free:  # of a part of a card, or of one that shares the machine's memory
            raise SettingsError(
                f"nvidia-smi does not tell how much memory {settings.device} has, by which a file would be "
                "chosen. Fix: name one, or its type, as in hf:OWNER/NAME:Q4_K_M"
            )
    left = max(0, free - PROCESS_BYTES[settings.device.partition(":")[0]])
    return Room(int(WEIGHTS_PART * left), f"of {size_text(free)} free on {settings.device}")
