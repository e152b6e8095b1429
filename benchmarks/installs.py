"""What an installation takes: packages to fetch, seconds, and disk, for each kind of user.

    python -m benchmarks.installs [--write]

First all wheels are brought into a folder, then each environment is made new from that folder alone.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.parse import unquote, urlparse

from benchmarks.harness import Benchmark, NoPlan, main
from benchmarks.report import ROOT, Row, Table

#: Who installs which extras.
KINDS = {
    "a service, only the clients": "",
    "the commands": "cli",
    "the commands, and Parquet": "cli,batch",
    "the gateway": "gateway",
    "a worker": "worker",
    "a worker and the gateway, as in the image": "worker,gateway",
    "all that `make test` takes": "worker,test",
}

#: `-I`: no other place for packages than the environment's own.
PIP = ("-I", "-m", "pip", "--disable-pip-version-check")

NO_SOURCE = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "node_modules")


def measure(_: NoPlan) -> Iterator[Table]:
    with TemporaryDirectory() as folder:
        wheels, source = Path(folder) / "wheels", Path(folder) / "source"
        shutil.copytree(ROOT, source, symlinks=True, ignore=NO_SOURCE)  # a build leaves its folders there
        every = ",".join(filter(None, KINDS.values()))
        pip_wheel = [sys.executable, *PIP, "wheel", "-q", "-c", str(ROOT / "constraints.txt")]
        _run(*pip_wheel, "-w", str(wheels), f"{source}[{every}]")
        venv = Path(folder) / "venv"
        yield Table([{"what": kind, **_installed(venv, extras, wheels)} for kind, extras in KINDS.items()])


def _installed(venv: Path, extras: str, wheels: Path) -> Row:
    """Install into an environment made new; what that took."""
    report = venv / "report.json"
    options = ["--no-index", "--find-links", str(wheels), "--report", str(report), f"llama-herd[{extras}]"]
    started_s = perf_counter()
    _run(sys.executable, "-m", "venv", "--clear", str(venv))
    _run(str(venv / "bin/python"), *PIP, "install", "-q", *options)
    seconds = perf_counter() - started_s
    urls = [one["download_info"]["url"] for one in json.loads(report.read_text())["install"]]
    fetched = [Path(unquote(urlparse(url).path)) for url in urls]
    return {
        "packages": len(fetched),
        "fetched, MB": sum(wheel.stat().st_size for wheel in fetched) / 1e6,
        "s": round(seconds, 1),
        "on disk, MB": sum(file.lstat().st_size for file in venv.rglob("*") if file.is_file()) / 1e6,
    }


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


BENCHMARK = Benchmark("installs", __doc__, NoPlan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
