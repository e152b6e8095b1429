"""What `herd doctor` checks of the device, and of the model that a worker would serve on it."""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llama_herd.cli.doctor.finding import Finding
from llama_herd.cli.signals import load_torch
from llama_herd.errors import BadInput
from llama_herd.extras import install_command, missing_modules
from llama_herd.model.hub.choice import size_text
from llama_herd.model.hub.name import HubName
from llama_herd.worker.loading.device import pin_device, torch_name, visible_cards
from llama_herd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from llama_herd.worker.loading.memory_plan import MemoryPlan
    from llama_herd.worker.loading.servable_model import ServableModel


def check_torch(settings: WorkerSettings) -> Finding:
    """Whether torch is installed and can use the device that is set, and whether a GPU is unused."""
    missing = missing_modules("worker")
    if missing:
        return Finding(
            "torch",
            "warn",
            f"this machine can only be a client: {', '.join(missing)} not installed",
            f"{install_command('worker')}, where a worker is to run",
        )
    try:
        device = pin_device(settings.device)
        load_torch()
    except BadInput as error:
        return Finding.told(error, "torch")
    import torch

    from llama_herd.model.kernels.gpu.load import complaint_of

    build = f"torch {torch.__version__}"
    if device == "cpu":
        return _check_cpu(build, torch.version.cuda)
    if torch.version.cuda is None:
        fix = f"install torch's CUDA build, or set HERD_DEVICE=cpu in place of {settings.device}"
        return Finding("torch", "fail", f"{build} is built without CUDA", fix)
    with warnings.catch_warnings(action="ignore"):  # torch would warn of what the finding says
        is_available = torch.cuda.is_available()
    if not is_available:
        fix = "update the driver, or install a torch that is built for an older CUDA"
        return Finding(
            "torch", "fail", f"{build} needs CUDA {torch.version.cuda}, but the driver's is older", fix
        )
    used = f"{build} on {settings.device}, {torch.cuda.get_device_name()}"
    if complaint := complaint_of(torch.cuda.get_device_capability()):
        return Finding("torch", "warn", f"{used}: {complaint}", "a GPU of compute capability 8.0 or newer")
    return Finding("torch", "ok", used)


def _check_cpu(build: str, cuda: str | None) -> Finding:
    try:
        cards = visible_cards()
    except BadInput as error:
        return Finding.told(error, "torch", "warn")
    if not cards:
        return Finding("torch", "ok", f"{build} on the CPU")
    fix = "leave HERD_DEVICE out, or herd worker --gpus all"
    if cuda is None:
        fix = f"install torch's CUDA build, then {fix}"
    return Finding("torch", "warn", f"{build} on the CPU, but this machine has GPUs: {', '.join(cards)}", fix)


def check_server(settings: WorkerSettings) -> Finding:
    """Whether the server that computes for a worker is there, and cuts texts as the model's files do."""
    from llama_herd.worker.foreign.server_summary import ServerSummary
    from llama_herd.worker.loading.hub_model import if_model_here

    try:
        here = if_model_here(settings)
        if here is None:
            return _absent_model(settings)
        server = ServerSummary.from_settings(here)
    except BadInput as error:
        return Finding.told(error, "engine")
    facts = server.facts
    detail = f"{server.engine} serves {facts.model}, {facts.max_length:,} tokens of context"
    return Finding("engine", "ok", detail)


def check_model(settings: WorkerSettings, *, has_device: bool) -> Iterator[Finding]:
    """Whether a worker would serve the model, without reading its weights; nothing where torch is broken.

    `has_device`: whether the device is there and pinned, so that its memory can be checked.
    """
    try:
        load_torch()
    except BadInput:
        return
    from llama_herd.worker.loading.hub_model import if_model_here
    from llama_herd.worker.loading.servable_model import ServableModel

    here = if_model_here(settings)
    if here is None:
        yield _absent_model(settings)
        return
    device = torch_name(here.device)
    try:
        with ServableModel.open(here, device) as servable:
            yield from _file_findings(servable, here.served_model)
            if device == "cpu":
                note = servable.kernels.note  # without them a model is served, but slowly
                yield Finding.told(note, "kernels", "warn" if " Fix: " in note else "ok")
            if has_device:
                yield from _memory_findings(servable, device)
    except BadInput as error:
        yield Finding.told(error, "model", fix="name another file by --model or HERD_MODEL")


def _file_findings(servable: "ServableModel", name: str) -> Iterator[Finding]:
    """What is in the model's files, and what of it is wrong though they can be served."""
    parts = f"{len(servable.file.tensors)} tensors, a vocabulary of {servable.tokenizer.vocab_size:,}"
    yield Finding("model", "ok", f"{name}: {parts}")
    for complaint in servable.file.complaints:
        yield Finding("model", "warn", complaint)
    for complaint in servable.tokenizer.complaints:
        yield Finding("tokens", "warn", complaint, "take a file of the same model that is newer")
    try:
        servable.check_chat()
    except BadInput as error:
        detail = f"jobs with messages are refused: {error}"
        yield Finding("chat", "warn", detail, "use a model file with a repaired template")


def _memory_findings(servable: "ServableModel", device: str) -> Iterator[Finding]:
    """Whether the model fits, and in which form its weights would be kept."""
    from llama_herd.model.files.sketch import TensorFact
    from llama_herd.worker.loading.model_summary import TypeShare

    try:
        plan = servable.fitting_plan()
    except BadInput as error:
        yield Finding.told(error, "memory")
        return
    shares = TypeShare.by_type(map(TensorFact.from_info, servable.file.tensors))
    yield Finding("weights", "ok", f"{', '.join(share.type for share in shares)}: {plan.form_note}")
    yield _memory_finding(plan, device)


def _absent_model(settings: WorkerSettings) -> Finding:
    name = HubName.from_setting(settings.model)
    return Finding("model", "warn", f"{name} is not here yet: a worker fetches it", f"herd pull {name}")


def _memory_finding(plan: "MemoryPlan", device: str) -> Finding:
    """The finding about memory: the two parts that settings decide; `herd inspect` lists all."""
    how = " in blocks" if plan.keeps_blocks else ""
    parts = f"weights {size_text(plan.weight_bytes)}{how}, KV cache {size_text(plan.kv_cache_bytes)}"
    total, free = size_text(plan.num_bytes), size_text(plan.free_bytes)
    return Finding("memory", "ok", f"{total} at most ({parts}), {free} free on {device}")
