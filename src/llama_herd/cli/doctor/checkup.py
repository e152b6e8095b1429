"""All checks of `herd doctor`, in the order in which a worker needs things."""

import platform
import resource
from collections.abc import Iterator

from llama_herd.cli.doctor.finding import Finding
from llama_herd.cli.doctor.model_checks import check_model, check_server, check_torch
from llama_herd.cli.doctor.redis_checks import check_queue_lists, check_redis, check_results, check_workers
from llama_herd.cli.environment import unknown_variables
from llama_herd.errors import BadInput
from llama_herd.extras import missing_modules, own_version
from llama_herd.tasks.settings_files import exposed_files
from llama_herd.worker.loading.device import on_device
from llama_herd.worker.settings import WorkerSettings

#: A worker has a few connections, a client two per stream. With fewer files a process of many clients fails.
MIN_OPEN_FILES = 1024


def check_up() -> Iterator[Finding]:
    """Run all checks; if the settings cannot be read, only those that need none."""
    yield Finding("python", "ok", f"{platform.python_version()}, llama-herd {own_version()}")
    yield check_open_files()
    for name, nearest in unknown_variables().items():
        yield Finding("settings", "warn", f"{name} is not a setting", f"the nearest name is {nearest}")
    try:
        given = WorkerSettings.read()
        settings = on_device(given)
    except BadInput as error:
        yield Finding.told(error, "settings", fix="set an allowed value, or leave it out")
        return
    yield Finding("settings", "ok", f"{len(given.model_fields_set)} set, the others are defaults")
    for name, complaint in exposed_files(WorkerSettings).items():
        yield Finding.told(f"{name}: {complaint}", "secrets", "warn")
    of_redis = check_redis(settings.redis_url)
    yield from of_redis
    if all(one.state != "fail" for one in of_redis):
        yield from check_queue_lists(settings.redis_url)
        yield from check_workers(settings)
    yield from check_results(settings)
    is_client = bool(missing_modules("worker"))
    if settings.is_foreign and not is_client:
        yield check_server(settings)
        return
    torch = check_torch(settings)
    yield torch
    if not is_client:
        yield from check_model(settings, has_device=torch.state != "fail")


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES:
        return Finding("open files", "ok", f"{soft} at once")
    fix = f"ulimit -n {MIN_OPEN_FILES}, or more: the hard limit is {hard}"
    return Finding("open files", "warn", f"{soft} at once, and each subscriber takes two", fix)
