"""What a person is told when Redis cannot be used: one cause, one fix, by our client of either kind."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from redis import Redis, exceptions
from redis.exceptions import RedisError

from llama_herd import Client
from llama_herd.errors import NotPermitted, RedisUnavailable, SettingsError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection.complaint import SIGNS, error_sign, redis_complaint, wrong_type_of
from llama_herd.tasks.connection.connect import connect, connect_async, redis_errors
from llama_herd.tasks.connection.redis_url import complete_url
from tests.tls import Identity, TlsFront, needs_openssl

pytestmark = pytest.mark.redis


def told(url: str) -> RedisUnavailable:
    """What both clients say of a read at this address; they say the same."""
    with connect(url, tries=0) as connection, pytest.raises(RedisUnavailable) as caught, redis_errors(url):
        connection.hget("herd:default:{a}:job", "state")

    async def ask() -> None:
        async with connect_async(url, tries=0) as connection:
            with redis_errors(url):
                await connection.hget("herd:default:{a}:job", "state")

    with pytest.raises(RedisUnavailable) as caught_async:
        asyncio.run(ask())
    assert str(caught_async.value) == str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    """With a user `poor`, who may do nothing, and a short file of connections."""
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        redis.acl_setuser("poor", enabled=True, passwords="+x", commands=["+ping", "+hello", "+client"])
        yield server


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


def caused(error: RedisError, cause: OSError) -> RedisError:
    error.__cause__ = cause
    return error


#: An error for each sign, in their order.
SIGNED = (
    exceptions.AuthenticationError("Authentication required."),
    exceptions.AuthenticationError("invalid username-password pair"),
    exceptions.NoPermissionError("this user has no permissions to run the 'get' command"),
    exceptions.ResponseError("ACL failure in script: no permissions"),
    exceptions.NoScriptError("No matching script"),
    exceptions.ResponseError("user_script:22: WRONGTYPE herd.m\x06\x16low holds set; script: 0ab, on 1"),
    wrong_type_of(["herd:default:kept"]),
    exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'"),
    exceptions.ResponseError("-OOM command not allowed when used memory > 'maxmemory', script: 0ab, on 1"),
    exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    exceptions.MasterDownError("Link with MASTER is down"),
    exceptions.ResponseError("READONLY You can't write against a read only replica, script: 0ab, on 1"),
    exceptions.ClusterDownError("Hash slot not served"),
    exceptions.ResponseError("Script attempted to access a non local key in a cluster node"),
    exceptions.ResponseError("unknown command 'HSET', with args beginning with: 'a'"),
    exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    redis.ConnectionError("max number of clients reached"),
    redis.ConnectionError("No master found for 'm' : a - AuthenticationError('x')\nno"),
    redis.ConnectionError("No master found for 'm'"),
    caused(redis.ConnectionError("away"), untrusted()),
    caused(redis.ConnectionError("away"), ssl.SSLError("alert")),
    redis.TimeoutError("Timeout reading from socket"),
    caused(redis.ConnectionError("away"), socket.gaierror(-2, "Name or service not known")),
    caused(redis.ConnectionError("away"), ConnectionRefusedError(111, "refused")),
    caused(redis.ConnectionError("away"), ConnectionResetError(104, "reset")),
    caused(redis.ConnectionError("away"), OSError(113, "No route to host")),
    redis.ConnectionError("Connection closed by server."),
    exceptions.ResponseError("something new"),
)


def test_every_sign_is_met_and_none_hides_another() -> None:
    assert [SIGNS.index(error_sign(error)) for error in SIGNED] == list(range(len(SIGNS)))
    complaints = [redis_complaint(error) for error in SIGNED]
    assert [told for told in complaints[:-1] if ". Fix: " not in told] == []


def test_a_wrong_password_is_one_thing_and_a_missing_right_another(server: EmbeddedRedis) -> None:
    place = f"127.0.0.1:{server.port}/0"
    wrong = told(f"redis://poor:y@{place}")
    assert str(wrong) == (
        f"Redis at redis://poor:***@{place} rejects the user or the password (WRONGPASS). Fix: put the user "
        "into HERD_REDIS_URL, as in redis://user@host:6379/0, and its password into HERD_REDIS_PASSWORD"
    )
    assert not isinstance(wrong, NotPermitted)
    denied = told(f"redis://poor:x@{place}")
    assert isinstance(denied, NotPermitted)
    assert "does not let this user do that (NOPERM): " in str(denied)
    assert "'hget'" in str(denied)
    assert str(denied).endswith("Fix: give it the role that it needs (herd acl), see docs/security.md")


def test_a_password_that_is_missing_is_asked_for(server: EmbeddedRedis) -> None:
    with Redis.from_url(server.url) as root:
        root.config_set("requirepass", "hunter2")
        try:
            missing = told(server.url)
        finally:
            root.config_set("requirepass", "")
    words = "asks for a password (NOAUTH), and none was given. Fix: put it into HERD_REDIS_PASSWORD"
    assert words in str(missing)


def test_a_redis_without_a_connection_left_says_so(server: EmbeddedRedis) -> None:
    with Redis.from_url(server.url) as root:
        root.config_set("maxclients", 1)
        try:
            said = told(server.url)
        finally:
            root.config_set("maxclients", 1000)
    assert "has as many clients as it takes (maxclients). Fix: " in str(said)
    assert "CONFIG SET maxclients" in str(said)


def test_a_closed_port_an_unknown_host_and_a_missing_socket_are_told_apart() -> None:
    closed = told("redis://127.0.0.1:1/0")
    assert "cannot be reached: nothing listens there. Fix: start it" in str(closed)
    assert "cannot be reached: this machine knows no such host. Fix: " in str(
        told("redis://no-such-host.invalid/0")
    )
    assert "cannot be reached: No such file or directory. Fix: " in str(told("unix:///nowhere/redis.sock"))


@contextmanager
def hanging_up() -> Iterator[str]:
    """The address of a port that closes each connection at once."""

    def close_each() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=close_each, daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def test_a_port_that_hangs_up_may_be_one_of_tls() -> None:
    with hanging_up() as url:
        assert "it closes the connection. Fix: wait until it is back; write rediss:// if" in str(told(url))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def here(folder: Path) -> Identity:
    return Identity.make(folder, "127.0.0.1")


@pytest.fixture(scope="module")
def elsewhere(folder: Path) -> Identity:
    return Identity.make(folder, "elsewhere.example")


@pytest.mark.long
@needs_openssl
def test_a_certificate_that_nobody_vouches_for_is_named(
    server: EmbeddedRedis, here: Identity, elsewhere: Identity
) -> None:
    with TlsFront(server.port, here) as front:
        for url in (front.url, complete_url(front.url, ca_file=str(elsewhere.file))):
            said = str(told(url))
            assert "shows a certificate that is not trusted (self-signed certificate). Fix: " in said
            assert said.endswith("put the certificate of the CA that signed it into HERD_REDIS_CA_FILE")
    with TlsFront(server.port, elsewhere) as front:
        foreign = told(complete_url(front.url, ca_file=str(elsewhere.file)))
    assert "certificate is not valid for '127.0.0.1'). Fix: write the host that its certificate names" in str(
        foreign
    )


@needs_openssl
def test_a_certificate_that_redis_wants_of_us_is_asked_for(
    server: EmbeddedRedis, here: Identity, elsewhere: Identity
) -> None:
    with TlsFront(server.port, here, client=elsewhere) as front:
        url = complete_url(front.url, ca_file=str(here.file))
        said = told(url)
    assert "breaks off TLS" in str(said)
    assert "HERD_REDIS_CERT_FILE" in str(said)


@pytest.mark.long
@needs_openssl
def test_a_port_without_tls_is_not_asked_for_it_for_long(server: EmbeddedRedis) -> None:
    url = f"rediss://127.0.0.1:{server.port}/0"
    with (
        connect(url, tries=0, timeout_s=0.3) as connection,
        pytest.raises(
            RedisUnavailable, match=r"does not answer in TLS\. Fix: .*redis:// if it speaks no TLS"
        ),
        redis_errors(url),
    ):
        connection.ping()


@needs_openssl
@pytest.mark.parametrize("name", ["ca_file", "cert_file", "key_file"])
def test_a_file_that_is_no_certificate_is_refused_before_anybody_connects(
    folder: Path, here: Identity, name: str
) -> None:
    junk = folder / "junk.pem"
    junk.write_text("not a certificate")
    files = {"ca_file": str(here.file), "cert_file": str(here.file), name: str(junk)}
    with pytest.raises(SettingsError, match=r"junk\.pem.*\. Fix: "):
        complete_url("rediss://h:6379/0", **files)
    with pytest.raises(SettingsError, match=r"names a file that does not exist.* Fix: "):
        complete_url("rediss://h:6379/0", **{**files, name: "/nowhere/ca.pem"})


class RenamingRedis(EmbeddedRedis):
    """Has renamed one command, as shops do that want nobody to use it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _command(self) -> list[str]:
        return [*super()._command(), "--rename-command", self._name, ""]


@pytest.mark.parametrize("name", ["SCRIPT", "EVALSHA"])
def test_a_command_that_is_renamed_is_named(name: str) -> None:
    with (
        RenamingRedis(name) as server,
        Client(server.url, model="m") as client,
        pytest.raises(RedisUnavailable, match=rf"take rename-command {name} out of its configuration$"),
    ):
        client.submit(prompt="x")
