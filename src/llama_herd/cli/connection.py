"""How a command reaches Redis at the settings of its environment: by a client, or by one dialogue."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from llama_herd.errors import NotPermitted, RedisUnavailable

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.ledger.redis_call import Dialogue
    from llama_herd.tasks.settings import Settings

T = TypeVar("T")


def open_client(**options: object) -> "Client":
    """A client of the queue, to be closed by the caller; options: as of `read_settings`.

    Raises SettingsError.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.settings import Settings

    return Client(settings=read_settings(Settings, **options))


def tenant_of(name: str | None) -> str:
    """The tenant that an option names, else that of the settings. Raises SettingsError."""
    from llama_herd.tasks.settings import Settings

    return (Settings.read(tenant=name) if name else Settings.read()).tenant


def check_redis(settings: "Settings") -> None:
    """Raise RedisUnavailable if Redis is away."""
    from llama_herd.tasks.connection.connect import connect, redis_errors

    with connect(settings.redis_url) as redis, redis_errors(settings.redis_url):
        redis.ping()


def may_come_back(error: RedisUnavailable) -> bool:
    """Whether Redis is away, or a replica for now; what is wrong with rights or a password lasts."""
    from redis.exceptions import AuthenticationError

    from llama_herd.tasks.connection.temporary_errors import is_temporary

    return is_temporary(error) and not isinstance(error.__cause__, AuthenticationError)


@contextmanager
def denials_fixed_by(fix: str) -> Iterator[None]:
    """Name this fix where a right is missing: a role that has it, or that none has it."""
    try:
        yield
    except NotPermitted as error:
        denial, _, _ = str(error).partition(" Fix: ")
        raise NotPermitted(f"{denial} Fix: {fix}") from None


def run_in_redis(dialogue: "Dialogue[T]", fix: str = "") -> T:
    """Run a dialogue with the ledger over a connection of its own. Raises SettingsError, RedisUnavailable.

    fix: as of `denials_fixed_by`; empty: that of the error.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.tasks.connection.connect import connect, redis_errors
    from llama_herd.tasks.ledger.redis_call import run_dialogue
    from llama_herd.tasks.settings import Settings

    settings = read_settings(Settings)
    with (
        denials_fixed_by(fix) if fix else nullcontext(),
        connect(settings.redis_url) as redis,
        redis_errors(settings.redis_url),
    ):
        return run_dialogue(redis, dialogue)
