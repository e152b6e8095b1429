"""All checks of `herd doctor`, in the order in which a worker needs things."""

import platform
import re
import resource
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from redis import Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from llama_herd.cli.environment import unknown_variables
from llama_herd.cli.signals import load_torch
from llama_herd.errors import BadInput, HerdError, RedisUnavailable
from llama_herd.extras import install_command, missing_modules, own_version
from llama_herd.local.redis_server import find_server, is_port_taken, local_port
from llama_herd.model.hub.choice import size_text
from llama_herd.model.hub.name import HubName
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection.complaint import CLUSTER, READ_ONLY, SENTINEL
from llama_herd.tasks.connection.connect import connect, redis_errors
from llama_herd.tasks.connection.redis_url import masked
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.tasks.settings_files import exposed_files
from llama_herd.worker.loading.device import on_device, pin_device, torch_name, visible_cards
from llama_herd.worker.settings import WorkerSettings

#: The scripts use commands of this version.
MIN_VERSION = (6, 2)

#: Modes and roles of a Redis that cannot keep jobs.
_UNFIT = {"cluster": CLUSTER, "sentinel": SENTINEL, "replica": READ_ONLY}

#: What gives a full Redis room.
_ROOM = "wait until jobs are done, herd purge --all-ended, or raise its maxmemory"

#: Errors that a Redis answers: then nothing is wrong with its port.
_ANSWERS = (ResponseError, AuthenticationError, BusyLoadingError)

#: What is said of what this user may not see, and the fix.
_UNSEEN = ("not seen: this user of Redis may not run INFO", "run it as a worker or an operator of herd acl")


FindingState = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """The state of one subject. With a warning the herd may still work; with a failure it will not."""

    subject: str
    state: FindingState
    detail: str
    fix: str = ""

    @classmethod
    def told(cls, what: object, subject: str, state: FindingState = "fail", fix: str = "") -> Self:
        """A finding from an error or a complaint. `fix` is used if that names none."""
        detail, _, own_fix = str(what).partition(" Fix: ")
        return cls(subject, state, detail.removesuffix("."), own_fix or fix)


def check_redis(url: str) -> list[Finding]:
    """Findings about the Redis at `url`; if none answers, whether one could be started there."""
    try:
        with connect(url, tries=0) as redis, redis_errors(url):
            greeting, info = _greeting(redis), _info(redis)
    except HerdError as error:
        has_answered = isinstance(error.__cause__, _ANSWERS)
        return [Finding.told(error, "redis"), *([] if has_answered else _check_port(url))]
    if unfit := _UNFIT.get(greeting["mode"]) or _UNFIT.get(greeting["role"]):
        return [Finding.told(RedisUnavailable(f"Redis at {masked(url)} {unfit}"), "redis")]
    version = _check_version(url, greeting, info)
    if info is None:
        return [version, *(Finding(subject, "warn", *_UNSEEN) for subject in ("eviction", "persistence"))]
    return [version, _check_eviction(info), _check_persistence(info)]


def check_results(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether a worker can store results in the Redis of HERD_RESULT_URL, if that is another one."""
    if missing_modules("worker") or not settings.keeps_results_elsewhere:
        return
    from llama_herd.worker.broker.result_server import complaint_of, try_to_store

    place = masked(settings.results_url)
    try:
        with connect(settings.results_url, tries=0) as redis:
            for own in settings.by_queue.values():
                try_to_store(redis, Keys(own.tenant).results_prefix)
    except RedisError as error:
        yield Finding.told(f"Redis at {place} {complaint_of(error)}", "results")
    else:
        yield Finding("results", "ok", f"stored at {place}")


def _greeting(redis: Redis) -> Mapping[str, Any]:
    """Redis's answer to HELLO: server, version, mode and role. Every user may ask, whatever its rights."""
    reply: Any = redis.execute_command("HELLO")  # type: ignore[no-untyped-call]
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {text(name): text(value) for name, value in pairs if isinstance(value, bytes)}


def _info(redis: Redis) -> Mapping[str, Any] | None:
    """Redis's own figures, which only some users may see; None: this one may not."""
    try:
        return redis.info()
    except NoPermissionError:
        return None


def _check_version(url: str, greeting: Mapping[str, Any], info: Mapping[str, Any] | None) -> Finding:
    """The finding about the version. Valkey may greet as the Redis that it replaces; that version counts."""
    version, needed = greeting["version"], ".".join(map(str, MIN_VERSION))
    if tuple(map(int, version.split(".")[:2])) >= MIN_VERSION:
        valkey = info.get("valkey_version") if info else version * (greeting["server"] == "valkey")
        return Finding("redis", "ok", f"{f'Valkey {valkey}' if valkey else version} at {masked(url)}")
    return Finding("redis", "fail", f"{version} at {masked(url)}", f"take Redis {needed} or newer, or Valkey")


def _check_eviction(info: Mapping[str, Any]) -> Finding:
    policy, max_bytes = info.get("maxmemory_policy", "unknown"), info.get("maxmemory", 0)
    limit = f"maxmemory {max_bytes:,} bytes" if max_bytes else "no maxmemory"
    if policy == "noeviction":
        if max_bytes and info.get("used_memory", 0) > max_bytes:
            return Finding("eviction", "fail", f"none, {limit}, all in use: no job is accepted", _ROOM)
        return Finding("eviction", "ok", f"none, {limit}")
    detail = f"policy {policy}, {limit}: a full Redis drops accepted jobs and streams"
    fix = "redis-cli CONFIG SET maxmemory-policy noeviction"
    return Finding("eviction", "fail" if max_bytes else "warn", detail, fix)


def _check_persistence(info: Mapping[str, Any]) -> Finding:
    if info.get("aof_enabled"):
        return Finding("persistence", "ok", "append-only file")
    detail = "no append-only file: accepted jobs are lost when Redis ends"
    return Finding("persistence", "warn", detail, "redis-cli CONFIG SET appendonly yes")


def _check_port(url: str) -> list[Finding]:
    """Whether `herd redis` could start one where none answers."""
    port = local_port(url)
    if port is None:
        return []
    if is_port_taken(port):
        detail = f"{port} is in use, but no usable Redis answers there"
        return [Finding("port", "fail", detail, "set HERD_REDIS_URL to another port")]
    try:
        find_server()
    except HerdError as error:
        return [Finding.told(error, "port", "warn")]
    return [Finding("port", "ok", f"{port} is free: herd redis starts a Redis there")]


#: Most keys that are looked through, in steps of so many, and most lists that are named.
MAX_KEYS, STEP, MAX_NAMED = 200_000, 1000, 5

#: How far before its end a message's own routing is searched: kombu writes its properties last.
TAIL_BYTES = 4096

_ROUTED = re.compile(rb'"routing_key": ?"([^"\\]+)"')
_FIX = (
    "leave `sep`, `global_keyprefix` and `priority_steps` beyond 0 to 9 out of the producer's "
    "broker_transport_options, then send these messages anew"
)


def check_queue_lists(url: str) -> Iterator[Finding]:
    """Name the lists that hold messages for a model's queue under a name that no worker asks."""
    try:
        with connect(url, tries=0) as redis, redis_errors(url):
            unread = _unread_lists(redis)
    except (HerdError, RedisError):  # another check has told, or this user may not see the keys
        return
    if unread:
        named = ", ".join(f"{name!r} ({num:,})" for name, num in unread[:MAX_NAMED])
        more = f" and {len(unread) - MAX_NAMED} more" if len(unread) > MAX_NAMED else ""
        detail = f"messages lie in lists that no worker reads: {named}{more}"
        yield Finding("queues", "warn", detail, _FIX)


def _unread_lists(redis: Redis) -> list[tuple[str, int]]:
    """Such lists and their lengths, of the first MAX_KEYS keys."""
    found: list[tuple[str, int]] = []
    reply: Any = (0, ())
    for _ in range(MAX_KEYS // STEP):
        reply = redis.scan(reply[0], match="*herd.*", count=STEP, _type="list")
        for key in reply[1]:
            try:
                message, num = redis.lindex(key, -1), redis.llen(key)
            except ResponseError:  # it was replaced, or is another tenant's
                continue
            routed = _ROUTED.findall(message[-TAIL_BYTES:] if isinstance(message, bytes) else b"")
            queue = text(routed[-1]) if routed else ""
            if queue.startswith("herd.") and text(key) not in lists_of(queue):
                found.append((text(key), num))
        if not reply[0]:
            break
    return found


def check_workers(settings: WorkerSettings) -> Iterator[Finding]:
    """Say what the workers of these tenants complain of."""
    complaints: list[str] = []
    for own in settings.by_queue.values():
        try:
            with Client(settings=own) as client:
                complaints += [complaint for worker in client.workers() for complaint in worker.complaints]
        except (HerdError, RedisError):  # another check has told, or this user may not see the reports
            continue
    for complaint in dict.fromkeys(complaints):
        yield Finding.told(complaint, "workers", "warn")


#: A worker has a few connections, a client two per stream. With fewer files a process of many clients fails.
MIN_OPEN_FILES = 1024


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES:
        return Finding("open files", "ok", f"{soft} at once")
    fix = f"ulimit -n {MIN_OPEN_FILES}, or more: the hard limit is {hard}"
    return Finding("open files", "warn", f"{soft} at once, and each subscriber takes two", fix)


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
    except BadInput as error:
        return Finding.told(error, "torch")
    load_torch()
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


if TYPE_CHECKING:
    from llama_herd.worker.loading.memory_plan import MemoryPlan


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
    """Whether a worker would serve the model, without reading its weights.

    `has_device`: whether the device is there and pinned, so that its memory can be checked.
    """
    from llama_herd.model.files.sketch import TensorFact
    from llama_herd.worker.loading.hub_model import if_model_here
    from llama_herd.worker.loading.model_summary import TypeShare
    from llama_herd.worker.loading.servable_model import ServableModel

    subject, fix = "model", "name another file by --model or HERD_MODEL"
    here = if_model_here(settings)
    if here is None:
        yield _absent_model(settings)
        return
    device = torch_name(here.device)
    try:
        with ServableModel.open(here, device) as servable:
            parts = f"{len(servable.file.tensors)} tensors, a vocabulary of {servable.tokenizer.vocab_size:,}"
            yield Finding("model", "ok", f"{here.served_model}: {parts}")
            for complaint in servable.tokenizer.complaints:
                yield Finding("tokens", "warn", complaint, "take a file of the same model that is newer")
            try:
                servable.check_chat()
            except BadInput as error:
                detail = f"jobs with messages are refused: {error}"
                yield Finding("chat", "warn", detail, "use a model file with a repaired template")
            if device == "cpu":
                note = servable.kernels.note  # without them a model is served, but slowly
                yield Finding.told(note, "kernels", "warn" if " Fix: " in note else "ok")
            subject, fix = "memory", ""
            if has_device:
                plan = servable.fitting_plan()
                shares = TypeShare.by_type(map(TensorFact.from_info, servable.file.tensors))
                types = ", ".join(share.type for share in shares)
                yield Finding("weights", "ok", f"{types}: {plan.form_note}")
                yield _memory_finding(plan, device)
    except BadInput as error:
        yield Finding.told(error, subject, fix=fix)


def _absent_model(settings: WorkerSettings) -> Finding:
    name = HubName.from_setting(settings.model)
    return Finding("model", "warn", f"{name} is not here yet: a worker fetches it", f"herd pull {name}")


def _memory_finding(plan: "MemoryPlan", device: str) -> Finding:
    """The finding about memory: the two parts that settings decide; `herd inspect` lists all."""
    how = " in blocks" if plan.keeps_blocks else ""
    parts = f"weights {size_text(plan.weight_bytes)}{how}, KV cache {size_text(plan.kv_cache_bytes)}"
    total, free = size_text(plan.num_bytes), size_text(plan.free_bytes)
    return Finding("memory", "ok", f"{total} at most ({parts}), {free} free on {device}")
