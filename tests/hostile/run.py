"""A process that looks at many damaged models, and says what became of each:

    python -m tests.hostile.run FOLDER FIRST COUNT

FOLDER is as `write_good_models` writes it. Case number N is the same whoever runs it. The process may take
little more memory than when it began, and a case no more CPU time than `MAX_CPU_S`: else it ends, and the
number that it printed last is that of the case.
"""

import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import process_time

from llama_herd.cli.inspect import summary_lines
from llama_herd.errors import ModelFileError
from llama_herd.model.files.open_model import open_model, read_tokens
from llama_herd.model.llama2 import Llama
from llama_herd.worker.loading.model_summary import ModelSummary
from llama_herd.worker.settings import WorkerSettings
from tests.hostile.gguf_damage import damaged_gguf
from tests.hostile.gguf_pieces import Pieces, cut
from tests.hostile.good_models import target
from tests.hostile.json_damage import damaged_json
from tests.hostile.kinds import kind_of

MAX_CPU_S = 4.0
#: Beyond what the process has when all good models have been looked at once.
MAX_MORE_BYTES = 64 << 20


class Models:
    """The good models, and a copy of them in which cases are made."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.work = work
        shutil.copytree(folder, work, dirs_exist_ok=True)
        self.names = sorted(path.name for path in folder.iterdir())
        self.files = {name: sorted((work / name).iterdir()) for name in self.names}
        self._good = {file: file.read_bytes() for files in self.files.values() for file in files}
        self._pieces = {file: cut(good) for file, good in self._good.items() if file.suffix == ".gguf"}

    def damaged(self, number: int) -> Path:
        """Make a case; returns what is to be opened."""
        rng = random.Random(number)
        name = rng.choice(self.names)
        for _ in range(rng.choice((1, 1, 1, 2))):
            file = rng.choice(self.files[name])
            self._damage(file, rng)
        return rng.choice(self.files[name]) if name == "parts" else target(self.work / name)

    def repair(self, path: Path) -> None:
        folder = path if path.is_dir() else path.parent
        for file in self.files[folder.name]:
            file.write_bytes(self._good[file])

    def _damage(self, file: Path, rng: random.Random) -> None:
        if rng.random() < 0.02:
            file.unlink(missing_ok=True)
        elif rng.random() < 0.02:
            file.write_bytes(self._good[rng.choice(list(self._good))])
        elif file.suffix == ".gguf":
            other: Pieces = self._pieces[rng.choice(list(self._pieces))]
            file.write_bytes(damaged_gguf(self._pieces[file], other, rng))
        elif file.suffix == ".json":
            file.write_bytes(damaged_json(self._good[file].decode(), rng))
        else:
            file.write_bytes(_damaged_safetensors(self._good[file], rng))


def _damaged_safetensors(good: bytes, rng: random.Random) -> bytes:
    length = struct.unpack_from("<Q", good)[0]
    header, data = good[8 : 8 + length], good[8 + length :]
    way = rng.randrange(8)
    if way == 0:
        return good[: rng.choice((0, 4, 7, 8, 9, 8 + length, 9 + length, rng.randrange(len(good))))]
    if way == 1:
        number = rng.choice((0, 1, 2, length - 1, length + 1, 2**24 + 1, 2**32, 2**63, 2**64 - 1))
        return struct.pack("<Q", number) + header + data
    if way == 2:
        return good + rng.randbytes(rng.randint(1, 40))
    damaged = damaged_json(header.decode(), rng)
    stated = length if rng.random() < 0.1 else len(damaged)
    return struct.pack("<Q", stated) + damaged + data


def look(path: Path) -> str:
    """What becomes of a model: "loads", or the kind of its one error, which all who look give."""
    summary = ModelSummary.from_settings(WorkerSettings.read(model=path, device="cpu"))
    json.dumps(summary.to_dict())
    assert list(summary_lines(summary))
    with suppress(ModelFileError):
        tokenizer, _ = read_tokens(path)
        tokenizer.decode(tokenizer.encode("the herd"))
    reason = _refusal(path)
    if summary.complaint != reason and (reason or "bytes" not in summary.complaint):
        raise AssertionError(f"inspect says {summary.complaint!r}, a worker {reason!r}")
    return kind_of(reason, path) if reason else "loads"


def _refusal(path: Path) -> str:
    """Why a worker would not load it, memory aside."""
    try:
        with open_model(path) as model:
            Llama.load(model)
            model.read_tokenizer()
    except ModelFileError as error:
        return str(error)
    return ""


def looks(models: Models, numbers: range) -> Iterator[tuple[int, str, float]]:
    """Each case's number, what became of it, and the seconds of CPU that it took."""
    for number in numbers:
        path = models.damaged(number)
        print(number, flush=True)
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
        start_s = process_time()
        try:
            outcome = look(path)
        except BaseException as error:
            outcome = f"RAISED {type(error).__name__}: {error}"[:300]
        taken_s = process_time() - start_s
        signal.setitimer(signal.ITIMER_PROF, 0)
        models.repair(path)
        yield number, outcome, taken_s


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(folder: Path, first: int, count: int) -> None:
    outcomes: Counter[str] = Counter()
    raised, slowest = [], (0.0, -1)
    with tempfile.TemporaryDirectory() as work:
        models = Models(folder, Path(work))
        good = {name: look(target(models.work / name)) for name in models.names}
        before_bytes = _peak_bytes()
        _limit_memory()
        for number, outcome, taken_s in looks(models, range(first, first + count)):
            outcomes[outcome] += 1
            slowest = max(slowest, (taken_s, number))
            if outcome.startswith("RAISED"):
                raised.append(f"{number}: {outcome}")
    report = {
        "outcomes": outcomes,
        "raised": raised,
        "slowest": slowest,
        "more_bytes": _peak_bytes() - before_bytes,
        "good": good,
    }
    print(json.dumps(report))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
