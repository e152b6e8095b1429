"""The records of files. Their bytes lie in a storage, which has an id of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import fields_of, text
from llama_herd.tasks.ledger.script import Script

_ADD = Script("file_add", "clock", "quota", "file")
_RESERVE = Script("file_reserve", "quota")
_DROP = Script("file_drop", "clock", "quota")
_DELAY = Script("delay", "clock")
_DUE = Script("due", "clock")
_LISTING = Script("listing", "clock", builds_keys=True)
SCRIPTS = (_ADD, _RESERVE, _DROP, _DELAY, _DUE, _LISTING)

#: Purposes of files: what came in, and what was made of it.
INPUT, OUTPUT = "batch", "batch_output"
#: Most records of a page, whatever is asked for.
MAX_PAGE = 1000
#: How long an upload may take before its bytes count as left behind.
UPLOAD_MS = 86_400_000
#: How long to wait before a file is looked at again that has expired, but cannot be deleted yet.
AGAIN_MS = 60_000

#: Redis key of the storages of all gateways, by when they are lost.
STORAGES = "herd:storages"

ListOrder = Literal["asc", "desc"]
DropOutcome = Literal["dropped", "unknown", "in_use", "kept"]


class Quota(NamedTuple):
    """Most of something that a tenant may have, and a single key of it. 0: no limit."""

    of_tenant: int
    of_key: int


class QuotaExceeded(NamedTuple):
    """A quota that would be exceeded. what: files, bytes or rows. whose: tenant or key."""

    what: str
    whose: str
    has: int
    limit: int

    @classmethod
    def from_reply(cls, reply: list[Any]) -> "QuotaExceeded":
        what, whose, has, limit = reply
        return cls(text(what), text(whose), int(has), int(limit))


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file's record. owner: fingerprint of the key that brought it. expires_ms None: never."""

    id: str
    name: str
    purpose: str
    storage: str
    num_bytes: int
    owner: str
    created_ms: int
    expires_ms: int | None

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> "StoredFile":
        words = {name: text(fields[name.encode()]) for name in ("id", "name", "purpose", "storage", "owner")}
        expires = fields[b"expires_ms"]
        return cls(
            num_bytes=int(fields[b"num_bytes"]),
            created_ms=int(fields[b"created_ms"]),
            expires_ms=int(expires) if expires else None,
            **words,
        )


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file whose bytes are stored. life_ms None: for ever."""

    id: str
    name: str
    purpose: str
    num_bytes: int
    owner: str = ""
    life_ms: int | None = None


class RecordPage(NamedTuple):
    """A page of records, as they are stored, and whether more follow."""

    records: tuple[Mapping[bytes, bytes], ...]
    has_more: bool


class DueItem(NamedTuple):
    """A file or batch that a gateway with its storage has to look after, as a member of a due list."""

    tenant: str
    id: str

    @property
    def member(self) -> str:
        return f"{self.tenant}/{self.id}"

    @classmethod
    def from_member(cls, member: bytes) -> "DueItem":
        tenant, _, name = text(member).partition("/")
        return cls(tenant, name)


@dataclass(frozen=True)
class StoredFiles(Keys):
    """All calls for one tenant's files in one storage. storage: its id."""

    storage: str = ""

    def file_key(self, file_id: str) -> str:
        return self.key(f"{{{file_id}}}:file")

    @property
    def due_key(self) -> str:
        return f"herd:files@{self.storage}"

    def _member(self, file_id: str) -> str:
        return DueItem(self.tenant, file_id).member

    def begin_upload(self, file_id: str) -> RedisCall[None]:
        """Note that bytes are being written: without a record they are deleted after a day."""
        return RedisCall(_DELAY, (self.due_key,), (self._member(file_id), UPLOAD_MS), lambda reply: None)

    def reserve(
        self, file_id: str, owner: str, num_bytes: int, quota: Quota
    ) -> RedisCall[QuotaExceeded | None]:
        """Count bytes of an upload that are to be written, within a quota, until `add` or `drop`."""
        return RedisCall(
            _RESERVE,
            (self.key("quota"),),
            (file_id, owner, num_bytes, *quota),
            lambda reply: QuotaExceeded.from_reply(reply[1:]) if reply[0] == b"full" else None,
        )

    def add(self, file: NewFile, files: Quota, num_bytes: Quota) -> RedisCall[StoredFile | QuotaExceeded]:
        """Record a file whose bytes are stored, within these quotas."""
        life_ms = "" if file.life_ms is None else file.life_ms
        facts = (file.id, self._member(file.id), file.name, file.purpose, self.storage, file.num_bytes)
        return RedisCall(
            _ADD,
            (self.file_key(file.id), self.key("stored_files"), self.key("quota"), self.due_key),
            (*facts, file.owner, life_ms, *files, *num_bytes),
            _read_added,
        )

    def get(self, file_id: str) -> RedisCall[StoredFile | None]:
        """A file's record, also of one that has expired."""
        return RedisCall("HGETALL", (self.file_key(file_id),), (), _read_file)

    def page(
        self, after: str, limit: int, order: ListOrder, purpose: str = ""
    ) -> RedisCall[RecordPage | None]:
        """Files after one of them, without those that have expired; None if there is no such one."""
        return records_page(self, "stored_files", "file", (after, min(limit, MAX_PAGE), order, purpose, 1))

    def drop(self, file_id: str, *, expired: bool = False) -> RedisCall[DropOutcome]:
        """Forget a file, unless a batch reads it, or what an upload has reserved. expired: only if it is."""
        return RedisCall(
            _DROP,
            (self.file_key(file_id), self.key("stored_files"), self.key("quota"), self.due_key),
            (file_id, self._member(file_id), "expired" if expired else "", AGAIN_MS),
            text,  # type: ignore[arg-type]  # one of these words
        )

    def put_off(self, file_id: str) -> RedisCall[None]:
        """Look at a file again in a while."""
        return RedisCall(_DELAY, (self.due_key,), (self._member(file_id), AGAIN_MS), lambda reply: None)

    def note_deleted(self, file_id: str) -> RedisCall[None]:
        """Note that a file's bytes are gone, too."""
        return RedisCall("ZREM", (self.due_key,), (self._member(file_id),), lambda reply: None)


def due_items(key: str, limit: int, farthest_ms: int | str = "") -> RedisCall[tuple[DueItem, ...]]:
    """The entries of a due list that are due now, at most `limit`.

    farthest_ms: an entry that is due even later was noted before the clock was put back.
    """
    return RedisCall(_DUE, (key,), (limit, farthest_ms), lambda reply: tuple(map(DueItem.from_member, reply)))


def storage_seen(storage: str, lost_in_ms: int) -> RedisCall[None]:
    """Note that a gateway reaches a storage, which is lost in so long unless that is noted again."""
    return RedisCall(_DELAY, (STORAGES,), (storage, lost_in_ms), lambda reply: None)


def lost_storages() -> RedisCall[tuple[str, ...]]:
    """The ids of storages that no gateway has reached for too long."""
    return RedisCall(_DUE, (STORAGES,), (MAX_PAGE, ""), lambda reply: tuple(map(text, reply)))


def redis_time_ms() -> RedisCall[int]:
    """The time by the clock of Redis, in unix milliseconds."""
    return RedisCall("TIME", (), (), lambda reply: 1000 * int(reply[0]) + int(reply[1]) // 1000)


def records_page(
    keys: Keys, index: str, kind: str, args: tuple[str | int, ...]
) -> RedisCall[RecordPage | None]:
    """A page of records: of files or batches, as `kind` says; None if the one to begin after is not there."""
    start, _, end = keys.key(f"{{\0}}:{kind}").partition("\0")
    return RedisCall(_LISTING, (keys.key(index),), (start, end, *args), _read_page)


def _read_page(reply: list[Any]) -> RecordPage | None:
    if reply[0] == b"unknown":
        return None
    return RecordPage(tuple(map(fields_of, reply[2:])), bool(reply[1]))


def _read_added(reply: list[Any]) -> StoredFile | QuotaExceeded:
    kind, *rest = reply
    return StoredFile.from_fields(fields_of(rest[0])) if kind == b"ok" else QuotaExceeded.from_reply(rest)


def _read_file(reply: Any) -> StoredFile | None:
    fields = fields_of(reply)
    return StoredFile.from_fields(fields) if fields else None
