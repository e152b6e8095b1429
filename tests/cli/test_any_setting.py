"""Whatever stands in a variable: it is taken, or one line names the variable, and repeats no password."""

from pathlib import Path

import pytest

from llama_herd.errors import BadInput, SettingsError
from llama_herd.tasks.gateway.app import make_gateway_app
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.settings_files import secret_variables
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import invoke
from tests.tls import Identity, needs_openssl

#: Each variable that is read, with the settings that read it; a client's are the worker's, too.
VARIABLES: dict[str, type[Settings]] = {
    variable: kind
    for kind in (GatewaySettings, WorkerSettings)
    for names in (*map(kind.variables, kind.model_fields), secret_variables(kind))
    for variable in names
}
LOGIN = "user:hunter2"
ODD = (
    *("", " ", "nan", "-1", "1e309", "9" * 5000, "٣", "true", "text", "a\nb", "a\x1b[2J", "\udcff"),
    *("y" * 100_000, "a,,b", "[", "/dev/zero", "/none", "hf:a/b:../c"),
    *(f"{scheme}://{LOGIN}@{rest}" for scheme in ("redis", "s3") for rest in ("", "h:99999", "[")),
)
#: Named in place of what it contradicts: certificates need TLS there.
REDIS = "HERD_REDIS_URL"


@pytest.fixture(autouse=True)
def _nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", VARIABLES)
def test_an_odd_value_is_taken_or_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for odd in ODD:
        monkeypatch.setenv(variable, odd)
        try:
            VARIABLES[variable].read()
        except SettingsError as error:
            complaint = str(error)
            assert variable in complaint or REDIS in complaint
            assert "hunter2" not in complaint
            is_path = variable.endswith("_FILE")  # told whole
            assert is_path or (complaint.isprintable() and len(complaint) < 800)


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_nul_in_an_env_file_is_named(variable: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"{variable}='a\0b'\n")
    with pytest.raises(SettingsError, match=variable):
        VARIABLES[variable].read()


PATHS = [name for name in VARIABLES if name.endswith(("_FILE", "_FILES", "_DIR"))] + ["HERD_MODEL"]


@pytest.mark.parametrize("variable", PATHS)
def test_a_path_may_begin_at_home(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands it in a .env, or in a unit of systemd."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").write_text("redis://host")

    def what_comes_of(path: str) -> object:
        monkeypatch.setenv(variable, path)
        try:
            return VARIABLES[variable].read()
        except SettingsError as error:
            return str(error).rpartition(": ")[2]

    assert what_comes_of("~/here") == what_comes_of(f"{tmp_path}/here")


@pytest.mark.parametrize("files", ["s3://", "s3:///", "s3://bucket"])
def test_a_storage_that_cannot_be_is_named_before_the_gateway_starts(
    files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_herd.tasks.storage.bucket.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=f"^{files}.*Fix: "):
        make_gateway_app(GatewaySettings.read(gateway_files=files))


HOSTS = [name for name in VARIABLES if name.endswith("_HOST")]


@pytest.mark.parametrize("variable", HOSTS)
def test_an_address_to_listen_at_is_one(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("::1", "0.0.0.0", "fe80::1%eth0", "my_host", f"{'x' * 63}.example."):
        monkeypatch.setenv(variable, host)
        VARIABLES[variable].read()
    for host in ("", " ", "[::1]", "http://h", "a..b", "x" * 64, ".", "\u200b", "127.0.0.1\n"):
        monkeypatch.setenv(variable, host)
        with pytest.raises(SettingsError, match=f"{variable}=.*must be an IP address or the name"):
            VARIABLES[variable].read()


@needs_openssl
def test_a_gateway_has_a_certificate_with_its_key_or_none(tmp_path: Path) -> None:
    mine, other = Identity.make(tmp_path, "127.0.0.1"), Identity.make(tmp_path, "here")
    (tmp_path / "empty").touch()
    certificate, key = str(mine.file.with_suffix(".crt")), str(mine.file.with_suffix(".key"))
    for own in ((str(mine.file), ""), (certificate, key), ("", "")):
        GatewaySettings.read(gateway_cert_file=own[0], gateway_key_file=own[1])
    for own in (
        (certificate, ""),
        (certificate, str(other.file.with_suffix(".key"))),
        ("empty", ""),
        ("", key),
    ):
        done = invoke("gateway", HERD_GATEWAY_CERT_FILE=own[0], HERD_GATEWAY_KEY_FILE=own[1])
        assert done.exit_code == 2
        (line,) = done.stderr.splitlines()
        assert "HERD_GATEWAY_KEY_FILE" in line
        assert "Fix: " in line
