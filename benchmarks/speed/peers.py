"""Install the peers of `make bench`, and what draws its plot, in an environment of their own.

    python -m benchmarks.speed.peers [FOLDER]

llama-cpp-python is compiled for this processor: about fifteen minutes on two cores. Its source gets one line
more: GCC 12 takes the tiles' configuration for unused and drops it, so quantised models die with SIGILL where
the processor has AMX. What was built, and with what, stands in FOLDER/peers.json.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent.parent
PEERS = ROOT / ".venv-peers"

LLAMA_CPP = "llama-cpp-python==0.3.36"
OPENVINO = "openvino-genai==2026.4.1.0"
SENTENCES = "sentence-transformers==6.2.0"
MATPLOTLIB = "matplotlib==3.11.2"
CMAKE_FLAGS = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TESTS=OFF"

#: What a Python takes to run pip.
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")

#: The call that GCC 12 breaks, and what has to stand before it.
CALL = "    _tile_loadconfig(&tc);"
BARRIER = '    __asm__ volatile("" ::: "memory");\n'


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PEERS
    python = folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(folder))
    with TemporaryDirectory() as scratch:
        source = fetch_source(python, Path(scratch))
        has_barrier = _add_barrier(source)
        print("Compiling llama.cpp: about fifteen minutes ...", flush=True)
        environment = {**os.environ, "CMAKE_ARGS": CMAKE_FLAGS}
        run(python, *PIP, "install", "--force-reinstall", str(source), env=environment)
        constraints = ("-c", str(ROOT / "constraints.txt"))  # another torch brings gigabytes
        run(python, *PIP, "install", *constraints, "torch", SENTENCES)
        run(python, *PIP, "install", OPENVINO, MATPLOTLIB)
    facts = {"package": LLAMA_CPP, "flags": CMAKE_FLAGS, "compiler": _compiler(), "barrier": has_barrier}
    (folder / "peers.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts))


def fetch_source(python: Path, folder: Path) -> Path:
    """The unpacked source of llama-cpp-python, with llama.cpp in `vendor`."""
    run(
        python,
        *PIP,
        "download",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "-d",
        str(folder),
        LLAMA_CPP,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


def _add_barrier(source: Path) -> bool:
    path = source / "vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    text = path.read_text()
    path.write_text(text.replace(CALL, BARRIER + CALL))
    return CALL in text


def _compiler() -> str:
    done = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command. Raises CalledProcessError if it fails."""
    subprocess.run(command, check=True, env=env)


if __name__ == "__main__":
    main()
