"""All checks, in the order in which things are needed."""

from collections.abc import Iterator

from llama_herd.errors import BadInput
from llama_herd.tasks.secret_files import exposed_files
from llama_herd.worker.doctor.finding import Finding
from llama_herd.worker.doctor.machine import check_open_files, check_python, check_torch
from llama_herd.worker.doctor.redis_server import check_redis
from llama_herd.worker.loading.device import pin_device
from llama_herd.worker.local.environment import unknown_variables
from llama_herd.worker.local.requirements import missing_worker_modules
from llama_herd.worker.settings import WorkerSettings


def check_up() -> Iterator[Finding]:
    """Look at one thing after the other; without settings that can be read, only at what needs none."""
    yield check_python()
    yield check_open_files()
    for name, nearest in unknown_variables().items():
        yield Finding("settings", "warn", f"{name} is no setting", f"the nearest name is {nearest}")
    try:
        settings = WorkerSettings.read()
    except BadInput as error:
        yield Finding.of(error, "settings", fix="write what is allowed, or leave it out")
        return
    yield Finding("settings", "ok", f"{len(settings.model_fields_set)} set, the others are defaults")
    for name, complaint in exposed_files(WorkerSettings).items():
        detail, _, fix = complaint.partition(". Fix: ")
        yield Finding("secrets", "warn", f"{name}: {detail}", fix)
    yield from check_redis(settings.redis_url)
    torch = check_torch(settings)
    yield torch
    if missing_worker_modules():
        return
    model = check_model(settings)
    yield model
    if "fail" not in (torch.state, model.state):
        yield check_memory(settings)


def check_model(settings: WorkerSettings) -> Finding:
    """Whether the model's file can be read; its weights are not looked at."""
    from llama_herd.model.files.model_file import open_model

    try:
        with open_model(settings.model) as file:
            num_tokens = file.read_tokenizer().vocab_size
            detail = f"{settings.served_model}: {len(file.tensors)} tensors, {num_tokens} tokens"
    except BadInput as error:
        return Finding.of(error, "model", fix="set HERD_MODEL to another file")
    return Finding("model", "ok", detail)


def check_memory(settings: WorkerSettings) -> Finding:
    """Whether the model and its KV cache fit beside what runs on the device now."""
    from llama_herd.model.files.model_file import open_model
    from llama_herd.worker.loading.memory_plan import MemoryPlan

    device = pin_device(settings.device)
    try:
        with open_model(settings.model) as file:
            plan = MemoryPlan.of(settings, file, device)
        plan.check(settings.model.name, device)
    except BadInput as error:
        return Finding.of(error, "memory")
    detail = f"{plan.num_bytes:,} bytes with a KV cache of {plan.kv_cache_tokens:,} tokens"
    return Finding("memory", "ok", f"{detail}, {plan.free_bytes:,} are free on {device}")
