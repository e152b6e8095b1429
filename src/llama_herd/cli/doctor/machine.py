"""The machine: Python, torch against the GPU's driver, open files."""

import platform
import resource
import warnings

from llama_herd.cli.doctor.finding import Finding
from llama_herd.cli.torch_import import load_torch
from llama_herd.errors import BadInput
from llama_herd.extras import install_command, missing_worker_modules, own_version
from llama_herd.worker.loading.device import pin_device, visible_cards
from llama_herd.worker.settings import WorkerSettings

#: A worker has a few connections, a client two per stream. With fewer files a process of many clients fails.
MIN_OPEN_FILES = 1024


def check_python() -> Finding:
    """Which Python this is; unsupported ones could not have installed this package."""
    return Finding("python", "ok", f"{platform.python_version()}, llama-herd {own_version()}")


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES:
        return Finding("open files", "ok", f"{soft} at once")
    fix = f"ulimit -n {MIN_OPEN_FILES}, or more: the hard limit is {hard}"
    return Finding("open files", "warn", f"{soft} at once, and each subscriber takes two", fix)


def check_torch(settings: WorkerSettings) -> Finding:
    """Whether torch is installed and can use the device that is set, and whether a GPU is unused."""
    missing = missing_worker_modules()
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
        return Finding.from_error(error, "torch")
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
    cards = visible_cards()
    if not cards:
        return Finding("torch", "ok", f"{build} on the CPU")
    fix = "leave HERD_DEVICE out, or herd worker --gpus all"
    if cuda is None:
        fix = f"install torch's CUDA build, then {fix}"
    return Finding("torch", "warn", f"{build} on the CPU, but this machine has GPUs: {', '.join(cards)}", fix)
