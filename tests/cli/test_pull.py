"""`herd pull`, as a process of its own, against a hub on this machine."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from llama_herd.extras import install_command
from tests.cli.herd_command import COMMAND, environment, fork_herd, invoke
from tests.hub_server import HubServer, digest
from tests.tiny import write_tiny_gguf

huggingface_hub = pytest.importorskip("huggingface_hub")

pytestmark = pytest.mark.program

REPO = "owner/tiny-GGUF"
TYPES = ("Q4_0", "Q8_0", "F16")
#: More than one chunk of a download.
LARGE_BYTES = 25_000_000

FOLDER_FILES = {
    "config.json": b'{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, '
    b'"num_hidden_layers": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, '
    b'"vocab_size": 9, "intermediate_size": 64}',
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"a": 1}',
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors", '
    b'"b": "model-00002-of-00002.safetensors"}}',
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a repository with a real model in several types."""
    folder = tmp_path_factory.mktemp("repo")
    found = {
        f"tiny-{type}.gguf": write_tiny_gguf(folder / f"{type}.gguf", type=type).read_bytes()
        for type in TYPES
    }
    return found | {"README.md": b"read me", "mmproj-tiny-F16.gguf": b"eyes"}


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[HubServer]:
    with HubServer({REPO: dict(files)}) as server:
        yield server


@dataclass(frozen=True)
class Machine:
    """A place that asks a hub, with a cache of its own."""

    hub: HubServer
    folder: Path

    def herd(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        own = self.hub.variables(self.folder / "hf") | variables
        process = fork_herd(self.folder, *arguments, **own)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.poll() or 0, stdout, stderr)

    def environment(self, **variables: str) -> dict[str, str]:
        return environment() | self.hub.variables(self.folder / "hf") | variables

    def pulled(self, *arguments: str, **variables: str) -> Path:
        done = self.herd("pull", *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.rstrip("\n"))

    def refused(self, *arguments: str, **variables: str) -> str:
        """What a command says that cannot be done."""
        done = self.herd(*arguments, **variables)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    @property
    def cache(self) -> Path:
        return self.folder / "hf" / "hub"

    @property
    def blobs(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("models--*/blobs/*"))


@pytest.fixture
def machine(hub: HubServer, tmp_path: Path) -> Machine:
    return Machine(hub, tmp_path)


def test_the_file_that_suits_the_machine_comes_whole_and_other_tools_find_it(
    machine: Machine, files: dict[str, bytes]
) -> None:
    done = machine.herd("pull", REPO)
    path = Path(done.stdout.rstrip("\n"))
    assert path.read_bytes() == files["tiny-Q8_0.gguf"]
    assert f"fetching tiny-Q8_0.gguf of {REPO}" in done.stderr
    assert "the most exact of 3 that fits" in done.stderr
    assert f"herd worker --model hf:{REPO}" in done.stderr
    found = huggingface_hub.hf_hub_download(
        REPO, "tiny-Q8_0.gguf", cache_dir=machine.cache, local_files_only=True
    )
    assert Path(found) == path
    assert machine.blobs == [digest("tiny-Q8_0.gguf", files["tiny-Q8_0.gguf"])]


def test_what_is_there_does_not_come_again_and_what_is_new_does(machine: Machine) -> None:
    first = machine.pulled(f"{REPO}:q4_0")
    machine.hub.asked.clear()
    again = machine.herd("pull", f"{REPO}:Q4_0")
    assert again.stdout == f"{first}\n"
    assert machine.hub.ranges("tiny-Q4_0.gguf") == []
    assert "it was there already" in again.stderr
    machine.hub.repos[REPO]["tiny-Q4_0.gguf"] += b"more"
    newer = machine.pulled(f"{REPO}:Q4_0")
    assert (newer != first, newer.read_bytes()[-4:]) == (True, b"more")


def test_a_connection_that_breaks_is_taken_up_where_it_broke(machine: Machine) -> None:
    content = os.urandom(LARGE_BYTES)
    machine.hub.repos[REPO] = {"a.gguf": content}
    machine.hub.breaks["a.gguf"] = 15_000_000
    assert machine.pulled(REPO).read_bytes() == content
    first, second = machine.hub.ranges("a.gguf")[1::2]  # each is asked of the hub, then of its store
    assert first is None
    assert second is not None
    assert 0 < int(second.removeprefix("bytes=").rstrip("-")) <= 15_000_000


def test_a_download_that_was_killed_goes_on_behind_what_has_come(machine: Machine) -> None:
    content = os.urandom(LARGE_BYTES)
    machine.hub.repos[REPO] = {"a.gguf": content}
    machine.hub.stalls["a.gguf"] = 15_000_000
    part = machine.cache / "models--owner--tiny-GGUF" / "blobs" / f"{digest('a.gguf', content)}.incomplete"
    env = machine.environment()
    with subprocess.Popen([*COMMAND, "pull", REPO], cwd=machine.folder, env=env, text=True) as process:
        while not (part.exists() and part.stat().st_size):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    here = part.stat().st_size
    machine.hub.asked.clear()
    assert machine.pulled(REPO).read_bytes() == content
    assert set(machine.hub.ranges("a.gguf")) == {f"bytes={here}-"}
    assert not part.exists()


def test_a_file_with_other_bytes_than_the_hub_says_is_removed(
    machine: Machine, files: dict[str, bytes]
) -> None:
    machine.hub.altered.add("tiny-Q8_0.gguf")
    said = machine.refused("pull", REPO)
    assert "tiny-Q8_0.gguf: has come with the checksum" in said
    assert digest("tiny-Q8_0.gguf", files["tiny-Q8_0.gguf"]) in said
    assert machine.blobs == []
    machine.hub.altered.clear()
    assert machine.pulled(REPO).read_bytes() == files["tiny-Q8_0.gguf"]


def test_all_parts_of_a_file_come(machine: Machine) -> None:
    parts = {f"big/b-Q4_K_M-0000{i}-of-00003.gguf": b"part %d" % i for i in (1, 2, 3)}
    machine.hub.repos[REPO] |= parts
    path = machine.pulled(f"{REPO}:b-Q4_K_M-00002-of-00003.gguf")
    assert path.name == "b-Q4_K_M-00001-of-00003.gguf"
    assert [one.read_bytes() for one in sorted(path.parent.iterdir())] == [*parts.values()]


def test_a_repository_of_safetensors_comes_as_a_folder_of_what_is_read(machine: Machine) -> None:
    others = {"pytorch_model.bin": b"pickle", "README.md": b"", "onnx/model.onnx": b"", "original/c.pth": b""}
    machine.hub.repos["owner/folder"] = FOLDER_FILES | others
    path = machine.pulled("https://huggingface.co/owner/folder")
    assert {one.name: one.read_bytes() for one in path.iterdir()} == FOLDER_FILES


def test_of_a_folder_that_no_worker_takes_no_weights_come(machine: Machine) -> None:
    machine.hub.repos["owner/folder"] = FOLDER_FILES | {"config.json": b'{"model_type": "mixtral"}'}
    for _ in range(2):  # its config.json is in the cache then
        said = machine.refused("pull", "owner/folder")
        assert "config.json: model_type is 'mixtral', mixtures of experts are not supported" in said
    assert machine.hub.ranges("model-00001-of-00002.safetensors") == []


def test_of_a_file_that_no_worker_takes_little_more_than_its_header_comes(
    machine: Machine, files: dict[str, bytes]
) -> None:
    content = files["tiny-Q8_0.gguf"].replace(b"llama", b"bloom") + bytes(40 << 20)
    machine.hub.repos[REPO] = {"a.gguf": content}
    for _ in range(2):  # its first bytes are in the cache then
        said = machine.refused("pull", REPO)
        assert "a.gguf: general.architecture is 'bloom', supported are llama" in said
    assert [path.stat().st_size >> 20 for path in machine.cache.glob("models--*/blobs/*")] == [32]
    assert len(machine.hub.ranges("a.gguf")) == 2  # of the hub, and of its store
    behind = {"HERD_ENGINE": "llama-server", "HERD_ENGINE_URL": "http://127.0.0.1:1"}
    assert machine.pulled(REPO, **behind).read_bytes() == content  # that server may serve it


def test_half_a_folder_in_the_cache_is_none(machine: Machine) -> None:
    machine.hub.repos["owner/folder"] = dict(FOLDER_FILES)
    path = machine.pulled("owner/folder")
    (path / "model-00002-of-00002.safetensors").unlink()
    said = machine.refused("inspect", "hf:owner/folder", HF_HUB_OFFLINE="1")
    assert "owner/folder is not in the cache" in said


def test_what_is_not_there_is_answered_with_what_is(machine: Machine) -> None:
    said = machine.refused("pull", f"{REPO}:Q5_K_M")
    assert f"{REPO}: no GGUF file of type Q5_K_M. Fix: name one of tiny-F16.gguf, tiny-Q4_0.gguf" in said
    assert "no such repository, or it is private" in machine.refused("pull", "owner/other")
    assert "OWNER/NAME:FILE.gguf" in machine.refused("pull", "nonsense")


def test_a_worker_takes_what_is_in_the_cache_without_asking(machine: Machine) -> None:
    path = machine.pulled(REPO)
    machine.hub.asked.clear()
    done = machine.herd("inspect", f"hf:{REPO}")
    assert done.stdout.startswith(f"{path}\n")
    assert machine.hub.asked == []


def test_what_another_tool_has_fetched_is_found(machine: Machine) -> None:
    theirs = huggingface_hub.hf_hub_download(
        REPO, "tiny-Q4_0.gguf", cache_dir=machine.cache, endpoint=machine.hub.url
    )
    machine.hub.close()
    assert machine.herd("inspect", f"hf:{REPO}").stdout.startswith(f"{theirs}\n")


def test_a_file_that_another_process_fetches_is_waited_for(machine: Machine, files: dict[str, bytes]) -> None:
    content = files["tiny-Q8_0.gguf"]
    blobs = machine.cache / "models--owner--tiny-GGUF" / "blobs"
    name = digest("tiny-Q8_0.gguf", content)
    lock = machine.cache / ".locks" / "models--owner--tiny-GGUF" / f"{name}.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        own = machine.hub.variables(machine.folder / "hf")
        process = fork_herd(machine.folder, "pull", f"{REPO}:Q8_0", **own)
        while not blobs.exists():
            assert process.poll() is None
        (blobs / "theirs").write_bytes(content)
        (blobs / "theirs").rename(blobs / name)
    path = Path(process.communicate(timeout=60)[0].rstrip("\n"))
    assert path.read_bytes() == content
    assert machine.hub.ranges("tiny-Q8_0.gguf") == []


def test_a_model_that_is_named_is_fetched(machine: Machine) -> None:
    done = machine.herd("inspect", HERD_MODEL=f"hf:{REPO}:tiny-Q4_0.gguf")
    assert "/tiny-Q4_0.gguf\n" in done.stdout
    assert "Q4_0" in done.stdout


@pytest.mark.parametrize("is_offline", [True, False])
def test_without_the_hub_the_cache_is_all_there_is(machine: Machine, is_offline: bool) -> None:
    path = machine.pulled(REPO)
    machine.hub.close()
    offline = {"HF_HUB_OFFLINE": "1"} if is_offline else {}
    assert machine.pulled(REPO, **offline) == path
    said = machine.refused("pull", f"{REPO}:Q4_0", **offline)
    reason = "is not asked: HF_HUB_OFFLINE is set" if is_offline else "cannot be reached (ConnectError)"
    assert f"{machine.hub.url} {reason}, and {REPO}:Q4_0 is not in the cache, {machine.cache}" in said


def test_a_token_is_asked_for_and_goes_to_the_hub_alone(machine: Machine) -> None:
    machine.hub.token = "hf_secret"
    said = machine.refused("pull", f"{REPO}:Q4_0")
    assert f"accept them at {machine.hub.url}/{REPO}, and set HF_TOKEN" in said
    machine.hub.asked.clear()
    done = machine.herd("pull", f"{REPO}:Q4_0", HF_TOKEN="hf_secret")
    assert done.returncode == 0
    assert "hf_secret" not in done.stdout + done.stderr
    shown = {one.path.startswith("/store/"): one.authorization for one in machine.hub.asked}
    assert shown == {False: "Bearer hf_secret", True: None}


def test_a_proxy_is_asked(machine: Machine) -> None:
    elsewhere = {"HF_ENDPOINT": "http://hub.invalid", "http_proxy": machine.hub.url, "NO_PROXY": "127.0.0.1"}
    assert machine.pulled(f"{REPO}:Q4_0", **elsewhere).name == "tiny-Q4_0.gguf"
    assert any(one.path.startswith("http://hub.invalid/api/models/") for one in machine.hub.asked)


@pytest.mark.parametrize(
    "forged",
    [
        {"sha": "../../../evil"},
        {"sha": None},
        {"siblings": [{"rfilename": "../../../evil.gguf", "size": 4, "blobId": 40 * "a"}]},
        {"siblings": [{"rfilename": "/evil.gguf", "size": 4, "blobId": 40 * "a"}]},
        {"siblings": [{"rfilename": "a\\..\\evil.gguf", "size": 4, "blobId": 40 * "a"}]},
        {"siblings": [{"rfilename": "evil.gguf", "size": 4, "blobId": "../../../evil"}]},
    ],
)
def test_names_of_a_hub_lead_nowhere_out_of_the_cache(machine: Machine, forged: dict[str, object]) -> None:
    machine.hub.forged = forged
    wanted = f"{REPO}:evil.gguf" if "siblings" in forged else f"{REPO}:Q4_0"
    assert REPO in machine.refused("pull", wanted)
    assert [path for path in machine.folder.rglob("*") if "evil" in path.name] == []


def test_an_answer_that_is_no_list_is_one_sentence(machine: Machine) -> None:
    machine.hub.forged = {"siblings": [{"size": 4}]}
    assert "does not answer as the hub does" in machine.refused("pull", REPO)


def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for arguments in (("pull", REPO), ("inspect", f"hf:{REPO}")):
        done = invoke(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "needs huggingface_hub" in done.stderr
        assert install_command("hub") in done.stderr


def test_to_choose_by_memory_needs_a_worker_and_to_name_a_type_does_not(machine: Machine) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'gguf', 'celery', 'structlog'): sys.modules[name] = None\n"
        "from llama_herd.cli import main\n"
        "main()"
    )

    def bare(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "pull", name]
        return subprocess.run(command, env=machine.environment(), capture_output=True, text=True, timeout=60)

    done = bare(f"{REPO}:Q4_0")
    assert done.returncode == 0, done.stderr
    assert install_command("worker") in bare(REPO).stderr
