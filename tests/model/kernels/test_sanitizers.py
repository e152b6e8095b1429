"""Built with ASan and UBSan, native kernels do all that their tests ask of them without a fault.

The tests give them the shapes that the engine makes, odd ones, and offsets beyond 32 bits; AMX is computed in
software, where a processor has at least AVX-512 with bfloat16.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llama_herd.model.kernels.instruction_set import AVX2
from tests.model.kernels.sanitized.build import preloaded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(bool(AVX2.complaint), reason=AVX2.complaint),
]

ROOT = Path(__file__).parents[3]
PLUGIN = "tests.model.kernels.sanitized.build"
NATIVE_TESTS = {
    "entry points": ["kernels/test_entry_points.py"],
    "offsets": ["kernels/test_far_offsets.py"],
    "products": ["kernels/test_native.py", "kernels/test_dequantize.py"],
    "attention": ["kernels/test_attention.py", "kernels/test_prefill_attention.py", "test_native_attend.py"],
    "rows": ["kernels/test_elementwise.py", "kernels/test_rotation.py"],
    "layers": ["test_native_layers.py", "test_native_decoder.py"],
    "models": ["test_native_model.py"],
    "draws": ["../worker/engine/sampling/test_native_draw.py"],
}


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    try:
        variables = preloaded()
    except OSError as error:
        pytest.skip(f"no compiler: {error}")
    missing = [path for path in variables["LD_PRELOAD"].split(":") if not Path(path).is_absolute()]
    if missing:
        pytest.skip(f"the compiler has no {', '.join(missing)}")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)), **variables}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is compiled for one of the tests is found by the others."""
    return tmp_path_factory.mktemp("sanitized")


def run(options: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("names", NATIVE_TESTS.values(), ids=NATIVE_TESTS)
def test_no_fault_is_found(environment: dict[str, str], cache: Path, names: list[str]) -> None:
    paths = [str((ROOT / "tests/model" / name).resolve()) for name in names]
    options = [
        "-p",
        PLUGIN,
        "-q",
        "--capture=sys",
        "-o",
        f"cache_dir={cache}",
        "-m",
        "not gpu",
        "--timeout",
        "1800",
    ]
    done = run(["-m", "pytest", *options, *paths], environment)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-8_000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE)


MISUSES = {
    "ERROR: AddressSanitizer: ": "rows.herd_norm(x, x, short, 1, 320, 0.0, False, 1)",
    "runtime error: division by zero": "rows.herd_attend(ctypes.byref(call), False)",
}


@pytest.mark.parametrize("fault", MISUSES)
def test_a_misuse_is_found(environment: dict[str, str], cache: Path, fault: str) -> None:
    """So silence says something."""
    code = f"""
import ctypes, sys
from pathlib import Path
from {PLUGIN} import pytest_configure
pytest_configure()
from llama_herd.model.kernels import build
from llama_herd.model.kernels.attention import AttentionCall
from llama_herd.model.kernels.native import load_library
folder = Path(sys.argv[1])
build.build(folder)
best = build.best_library(folder)
rows = load_library(best.set, best.path).library
x, short = (ctypes.c_float * 320)(), (ctypes.c_float * 319)()
zero = (ctypes.c_int64 * 1)()
at = ctypes.addressof(zero)
call = AttentionCall(rows=at, lengths=at, tables=at, pages=at, num_rows=1, heads=1, kv_heads=1, head_dim=2)
{MISUSES[fault]}
"""
    done = run(["-c", code, str(cache / "d/kernels")], environment)
    assert done.returncode != 0
    assert fault in done.stderr
