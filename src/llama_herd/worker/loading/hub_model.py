"""A worker's model where its settings name one of Hugging Face."""

import sys
from pathlib import Path

from llama_herd.counted import counted
from llama_herd.errors import SettingsError
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
        return fetch_model(name, lambda: weights_room(settings), tell, note, _choice(settings), _refuse_early)


def _refuse_early(folder: Path) -> None:
    """Raise ModelFileError for a folder whose config.json no worker takes."""
    if missing_modules("worker"):  # a machine that only fetches
        return
    from llama_herd.model.config import LlamaConfig
    from llama_herd.model.files.safetensors_model import CONFIG_NAME, MAX_CONFIG_BYTES
    from llama_herd.model.reading.json_file import read_json

    config_json = read_json(folder / CONFIG_NAME, MAX_CONFIG_BYTES)
    LlamaConfig.from_json(config_json, config_json.source)


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
