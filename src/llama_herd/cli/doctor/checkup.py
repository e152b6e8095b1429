"""All checks of `herd doctor`, in the order in which a worker needs things."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llama_herd.cli.doctor.finding import Finding
from llama_herd.cli.doctor.machine import check_open_files, check_python, check_torch
from llama_herd.cli.doctor.queue_lists import check_queue_lists
from llama_herd.cli.doctor.redis_server import check_redis
from llama_herd.cli.environment import unknown_variables
from llama_herd.errors import BadInput
from llama_herd.extras import missing_worker_modules
from llama_herd.size_text import size_text
from llama_herd.tasks.secret_files import exposed_files
from llama_herd.worker.loading.device import on_device, torch_name
from llama_herd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from llama_herd.worker.loading.memory_plan import MemoryPlan
    from llama_herd.worker.loading.servable_model import ServableModel


def check_up() -> Iterator[Finding]:
    """Run all checks; if the settings cannot be read, only those that need none."""
    yield check_python()
    yield check_open_files()
    for name, nearest in unknown_variables().items():
        yield Finding("settings", "warn", f"{name} is not a setting", f"the nearest name is {nearest}")
    try:
        settings = on_device(WorkerSettings.read())
    except BadInput as error:
        yield Finding.from_error(error, "settings", fix="set an allowed value, or leave it out")
        return
    yield Finding("settings", "ok", f"{len(settings.model_fields_set)} set, the others are defaults")
    for name, complaint in exposed_files(WorkerSettings).items():
        detail, _, fix = complaint.partition(". Fix: ")
        yield Finding("secrets", "warn", f"{name}: {detail}", fix)
    of_redis = check_redis(settings.redis_url)
    yield from of_redis
    if all(one.state != "fail" for one in of_redis):
        yield from check_queue_lists(settings.redis_url)
    torch = check_torch(settings)
    yield torch
    if not missing_worker_modules():
        yield from check_model(settings, has_device=torch.state != "fail")


def check_model(settings: WorkerSettings, *, has_device: bool) -> Iterator[Finding]:
    """Whether a worker would serve the model, without reading its weights.

    `has_device`: whether the device is there and pinned, so that its memory can be checked.
    """
    from llama_herd.model.files.sketch import TensorFact
    from llama_herd.model.hub.name import SCHEME
    from llama_herd.worker.loading.hub_model import if_model_here
    from llama_herd.worker.loading.model_summary import TypeShare
    from llama_herd.worker.loading.servable_model import ServableModel

    subject, fix = "model", "name another file by --model or HERD_MODEL"
    here = if_model_here(settings)
    if here is None:
        name = str(settings.model).removeprefix(SCHEME)
        yield Finding("model", "warn", f"{name} is not here yet: a worker fetches it", f"herd pull {name}")
        return
    settings = here
    device = torch_name(settings.device)
    try:
        with ServableModel.open(settings, device) as servable:
            parts = f"{len(servable.file.tensors)} tensors, a vocabulary of {servable.tokenizer.vocab_size:,}"
            yield Finding("model", "ok", f"{settings.served_model}: {parts}")
            for complaint in servable.tokenizer.complaints:
                yield Finding("tokens", "warn", complaint, "take a file of the same model that is newer")
            yield from check_chat(servable)
            if device == "cpu":
                yield _kernels_finding(servable.kernels.note)
            subject, fix = "memory", ""
            if has_device:
                plan = servable.fitting_plan()
                shares = TypeShare.by_type(map(TensorFact.from_info, servable.file.tensors))
                types = ", ".join(share.type for share in shares)
                yield Finding("weights", "ok", f"{types}: {plan.form_note}")
                yield _memory_finding(plan, device)
    except BadInput as error:
        yield Finding.from_error(error, subject, fix=fix)


def check_chat(servable: "ServableModel") -> Iterator[Finding]:
    """Whether jobs with messages are refused though the model has a chat template."""
    try:
        servable.check_chat()
    except BadInput as error:
        yield Finding(
            "chat",
            "warn",
            f"jobs with messages are refused: {error}",
            "use a model file with a repaired template",
        )


def _kernels_finding(note: str) -> Finding:
    """The finding about kernels that multiply blocks on a CPU: without them a model is served, but slowly."""
    detail, _, fix = note.partition(". Fix: ")
    return Finding("kernels", "warn" if fix else "ok", detail, fix)


def _memory_finding(plan: "MemoryPlan", device: str) -> Finding:
    """The finding about memory: the two parts that settings decide; `herd inspect` lists all."""
    how = " in blocks" if plan.keeps_blocks else ""
    parts = f"weights {size_text(plan.weight_bytes)}{how}, KV cache {size_text(plan.kv_cache_bytes)}"
    total, free = size_text(plan.num_bytes), size_text(plan.free_bytes)
    return Finding("memory", "ok", f"{total} at most ({parts}), {free} free on {device}")
