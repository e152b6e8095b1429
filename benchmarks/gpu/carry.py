"""What a machine without a network must be brought: wheels of the packages that it lacks.

    python -m benchmarks.gpu.carry build      # where there is a network: into .wheels, 13 MB
    python3 -m benchmarks.gpu.carry install   # on the machine with the card: into /tmp/site, some seconds

Needs nothing but pip and Python's own library.
"""

import subprocess
import sys
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent.parent
WHEELS, SITE = ROOT / ".wheels", Path("/tmp/site")
#: That machine's Python, and the C libraries that its wheels may be made for.
PYTHON = "3.12"
GLIBC = ("_2_34", "_2_31", "_2_28", "_2_27", "_2_24", "_2_17", "2014")
PLATFORMS = tuple(f"manylinux{version}_x86_64" for version in GLIBC)
#: Such a machine takes no more, the repository included.
MAX_BYTES = 48 << 20


def build() -> None:
    """Collect the wheels that `wheels.txt` names, in the versions of `constraints.txt`."""
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    names = ["-r", str(ROOT / "benchmarks/gpu/wheels.txt"), "-c", str(ROOT / "constraints.txt")]
    only = ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    _pip("download", "-q", *only, *platforms, *names, "-d", str(WHEELS))
    wheels = list(WHEELS.glob("*.whl"))
    num_bytes = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{len(wheels)} wheels, {num_bytes / 1e6:.1f} MB in {WHEELS}")
    if num_bytes > MAX_BYTES:
        raise SystemExit(f"more than the {MAX_BYTES >> 20} MiB that can be carried")


def install() -> None:
    """Unpack them beside what the machine has."""
    started = perf_counter()
    wheels = sorted(map(str, WHEELS.glob("*.whl")))
    if not wheels:
        raise SystemExit(f"no wheels in {WHEELS}. Fix: python -m benchmarks.gpu.carry build, and carry them")
    alone = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
    _pip("install", "-q", *alone, "--target", str(SITE), *wheels)
    print(f"{len(wheels)} wheels in {SITE} after {perf_counter() - started:.1f} s")


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    {"build": build, "install": install}[sys.argv[1]]()
