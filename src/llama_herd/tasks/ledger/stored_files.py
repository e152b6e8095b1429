"""The records of files. Their bytes lie in a storage, which has an id of its own."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from llama_herd.tasks.ledger.keys import Keys, around_id
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import fields_of, text
from llama_herd.tasks.ledger.script_call import call

T = TypeVar("T")

#: Purposes of files: what came in, and what was made of it.
INPUT, OUTPUT = "batch", "batch_output"
#: Most records of a page, whatever is asked for.
MAX_PAGE = 1000
#: How long an upload may take before its bytes count as left behind.
UPLOAD_MS = 86_400_000
#: How long to wait before a file is looked at again that has expired, but cannot be deleted yet.
AGAIN_MS = 60_000
#: How long a page may begin behind a file that was deleted: as long as somebody may be at the page before.
PLACE_MS = 3_600_000

#: Redis key of the storages of all gateways, by when they are lost.
STORAGES = "herd:storages"

ListOrder = Literal["asc", "desc"]
DropOutcome = Literal["dropped", "unknown", "in_use", "kept"]


class Quota(NamedTuple):
    """Most of something that a tenant may have, and a single key of it. 0: no limit."""

    of_tenant: int
    of_key: int

    def named(self, name: str) -> dict[str, int]:
        """Both, by their names in scripts."""
        return {name: self.of_tenant, f"{name}_of_key": self.of_key}


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
    """A file or batch that a gateway with its storage has to look after."""

    tenant: str
    id: str

    @classmethod
    def from_member(cls, member: bytes) -> "DueItem":
        tenant, _, name = text(member).partition("/")
        return cls(tenant, name)


@dataclass(frozen=True)
class StorageKeys(Keys):
    """The keys of one tenant, and those of one storage of files. storage: its id."""

    storage: str = ""

    def file_key(self, file_id: str) -> str:
        return self.key(f"{{{file_id}}}:file")

    @property
    def files_due_key(self) -> str:
        return f"herd:files@{self.storage}"

    def member(self, name: str) -> str:
        """A file or batch of the tenant in a due list."""
        return f"{self.tenant}/{name}"


@dataclass(frozen=True)
class StoredFiles(StorageKeys):
    """All calls for one tenant's files in one storage."""

    def begin_upload(self, file_id: str) -> RedisCall[None]:
        """Note that bytes are being written: without a record they are deleted after a day."""
        return _delay(self.files_due_key, self.member(file_id), UPLOAD_MS)

    def reserve(
        self, file_id: str, owner: str, num_bytes: int, quota: Quota
    ) -> RedisCall[QuotaExceeded | None]:
        """Count bytes of an upload that are to be written, within a quota, until `add` or `drop`."""
        return call(
            "file_reserve",
            lambda reply: QuotaExceeded.from_reply(reply[1:]) if reply[0] == b"full" else None,
            **self.keys_named("quota"),
            id=file_id,
            owner=owner,
            num_bytes=num_bytes,
            **quota.named("most"),
        )

    def add(self, file: NewFile, files: Quota, num_bytes: Quota) -> RedisCall[StoredFile | QuotaExceeded]:
        """Record a file whose bytes are stored, within these quotas."""
        return call(
            "file_add",
            _read_added,
            **self._keys_of(file.id),
            **asdict(file),
            member=self.member(file.id),
            storage=self.storage,
            **files.named("most_files"),
            **num_bytes.named("most_bytes"),
        )

    def get(self, file_id: str) -> RedisCall[StoredFile | None]:
        """A file's record, also of one that has expired."""
        key = (self.file_key(file_id),)
        return RedisCall(
            "HGETALL", key, (), lambda reply: StoredFile.from_fields(fields_of(reply)) if reply else None
        )

    def page(
        self, after: str, limit: int, order: ListOrder, purpose: str = ""
    ) -> RedisCall[RecordPage | None]:
        """Files after one of them, without those that have expired; None if there is no such one.

        It may have been deleted lately.
        """
        most = min(limit, MAX_PAGE)
        return records_page(self, "file", after, most, order, purpose)

    def drop(self, file_id: str, *, expired: bool = False) -> RedisCall[DropOutcome]:
        """Forget a file, unless a batch reads it, or what an upload has reserved. expired: only if it is.

        A page may begin behind it until this is called again.
        """
        return call(
            "file_drop",
            text,  # type: ignore[arg-type]  # one of these words
            **self._keys_of(file_id),
            id=file_id,
            member=self.member(file_id),
            only="expired" if expired else "",
            again_ms=AGAIN_MS,
        )

    def _keys_of(self, file_id: str) -> dict[str, str]:
        """The keys that change with a file, by their names in scripts."""
        file, files = self.file_key(file_id), self.key("stored_files")
        return {"file": file, "files": files, "quota": self.key("quota"), "files_due": self.files_due_key}

    def put_off(self, file_id: str, delay_ms: int = AGAIN_MS) -> RedisCall[None]:
        """Look at a file again in a while."""
        return _delay(self.files_due_key, self.member(file_id), delay_ms)

    def note_deleted(self, file_id: str) -> RedisCall[None]:
        """Note that nothing is left of a file."""
        return RedisCall("ZREM", (self.files_due_key,), (self.member(file_id),), lambda reply: None)


def _delay(key: str, member: str, delay_ms: int) -> RedisCall[None]:
    return call("delay", lambda reply: None, list=key, member=member, delay_ms=delay_ms)


def due_items(key: str, limit: int, farthest_ms: int | None = None) -> RedisCall[tuple[DueItem, ...]]:
    """The entries of a due list that are due now, at most `limit`.

    farthest_ms: an entry that is due even later was noted before the clock was put back.
    """
    return _due(key, limit, farthest_ms, DueItem.from_member)


def storage_seen(storage: str, lost_in_ms: int) -> RedisCall[None]:
    """Note that a gateway reaches a storage, which is lost in so long unless that is noted again."""
    return _delay(STORAGES, storage, lost_in_ms)


def lost_storages() -> RedisCall[tuple[str, ...]]:
    """The ids of storages that no gateway has reached for too long."""
    return _due(STORAGES, MAX_PAGE, None, text)


def _due(
    key: str, most: int, farthest_ms: int | None, parse: Callable[[bytes], T]
) -> RedisCall[tuple[T, ...]]:
    return call("due", lambda reply: tuple(map(parse, reply)), list=key, most=most, farthest_ms=farthest_ms)


def records_page(
    keys: Keys, kind: Literal["file", "batch"], after: str, most: int, order: ListOrder, purpose: str = ""
) -> RedisCall[RecordPage | None]:
    """A page of records; None if the one to begin after is not there. Expired files are left out."""
    return call(
        "listing",
        _read_page,
        index=keys.key({"file": "stored_files", "batch": "stored_batches"}[kind]),
        **around_id(lambda name: keys.key(f"{{{name}}}:{kind}")),
        last=after,
        most=most,
        order=order,
        purpose=purpose,
        leaves_out=int(kind == "file"),
    )


def _read_page(reply: list[Any]) -> RecordPage | None:
    if reply[0] == b"unknown":
        return None
    return RecordPage(tuple(map(fields_of, reply[2:])), bool(reply[1]))


def _read_added(reply: list[Any]) -> StoredFile | QuotaExceeded:
    kind, *rest = reply
    return StoredFile.from_fields(fields_of(rest[0])) if kind == b"ok" else QuotaExceeded.from_reply(rest)
