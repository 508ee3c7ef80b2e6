"""Clients' files on disk: uploads and the results of batches."""

from __future__ import annotations

import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from fastovms.errors import ConfigurationError, RequestError, StateNotLoaded
from fastovms.fair_queue import Shares
from fastovms.server_config import FilesConfig
from fastovms.system.clock import ExpiryRounds
from fastovms.system.disk import lock_file, open_file, private_directory, read_file
from fastovms.system.threads import DiskThreads, run_to_end

logger = logging.getLogger(__name__)


PURPOSES: Final = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
"""The purposes that a client may give for an uploaded file."""

BATCH_OUTPUT: Final = "batch_output"


class OwnedRecord(msgspec.Struct, kw_only=True):
    """The record of a file or a batch.

    Attributes:
        tenant: the API key that the object belongs to; "" = the server has no keys.
        owner: the key or address whose limits the object counts against; "" = the tenant.
        created_at: a Unix time.
    """

    id: str
    tenant: str
    created_at: int
    owner: str = ""

    @property
    def shared_by(self) -> str:
        """The owner whose limits the object counts against."""
        return self.owner or self.tenant


class FileRecord(OwnedRecord, kw_only=True):
    """The record of a file, which does not change.

    Attributes:
        name: the client's name for the file; not used as a path.
        size: in bytes.
        expires_at: a Unix time; None = never.
    """

    name: str
    purpose: str
    size: int
    expires_at: int | None = None


_SUFFIX: Final = ".json"

Record = TypeVar("Record", bound=OwnedRecord)


class Records(Generic[Record]):
    """The records of one kind, in memory and on disk, one file per record. The constructor and the
    methods that change files block, so call them in a thread. An unreadable file is kept and
    logged.

    Args:
        directory: created if missing.

    Attributes:
        known: the records by id; the caller adds and removes entries.
        unread: the ids of unreadable records.
    """

    def __init__(self, directory: Path, kind: type[Record]) -> None:
        self._directory = directory
        self.known: dict[str, Record] = {}
        self.unread: set[str] = set()
        private_directory(directory)
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            try:
                self.known[path.stem] = msgspec.json.decode(read_file(path), type=kind)
            except (OSError, msgspec.DecodeError) as error:
                self.unread.add(path.stem)
                logger.error("cannot read the record %s: %s", path, error)

    def find(self, tenant: str, id: str) -> Record | None:
        """Returns a tenant's record. Raises StateNotLoaded if the record cannot be read."""
        if id in self.unread:
            raise StateNotLoaded(f"the record of {id} cannot be read")
        record = self.known.get(id)
        return record if record is not None and record.tenant == tenant else None

    def of(self, tenant: str) -> list[Record]:
        """Returns a tenant's records, oldest first."""
        found = [record for record in self.known.values() if record.tenant == tenant]
        return sorted(found, key=lambda record: (record.created_at, record.id))

    def write(self, id: str, record: Record) -> None:
        """Writes or replaces a record. Raises OSError; the previous record is then unchanged."""
        path = self._path(id)
        draft = _draft(path)
        with open(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        self.unread.discard(id)
        sync_directory(self._directory)

    def delete(self, id: str) -> None:
        """Deletes a record, including the remains of a failed write."""
        path = self._path(id)
        path.unlink(missing_ok=True)
        self.unread.discard(id)
        _draft(path).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self._directory / f"{id}{_SUFFIX}"


def _draft(path: Path) -> Path:
    return path.with_suffix(".new")


def sync_directory(path: Path) -> None:
    """Syncs a directory, so that created and removed names survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FOLDER: Final = "files"

_NEVER: Final = float("inf")

_FURTHER_SHARE: Final = 4
"""If one owner has used up `max_files_size`, the other owners together get 1 / this number of it in
addition."""

_HIDDEN: Final = "files without a readable record"


class FileStore:
    """The files of all tenants. Methods run on the event loop; those that write use threads.

    Args:
        directory: created if missing, and locked until `close`.
        clock: returns the Unix time.
        threads: the threads for reading and writing contents; close them before the store.

    Attributes:
        files: each owner's share of the number of files.
        bytes: each owner's share of the bytes of files and uploads.

    Raises:
        ConfigurationError: the directory is not available, or another process uses it.
    """

    def __init__(
        self,
        directory: Path,
        config: FilesConfig,
        clock: Callable[[], float],
        threads: DiskThreads,
    ) -> None:
        self.config = config
        self.threads = threads
        self._clock = clock
        self._contents = directory / "contents"
        self._partial = directory / "partial"
        self._pins: Counter[str] = Counter()
        limit = config.max_files_size
        self.files = Shares.of_places(config.max_files)
        self.bytes = Shares(limit, limit + limit // _FURTHER_SHARE)
        self._next_expiry = _NEVER
        self._rounds = ExpiryRounds("files")
        try:
            for folder in (directory, self._contents, self._partial):
                private_directory(folder)
            self._lock = lock_file(directory / "lock")
            try:
                self._records = Records(directory / "records", FileRecord)
                self._load()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise ConfigurationError(
                f"files cannot be stored in {error.filename or directory}: "
                f"{error.strerror or error}"
            ) from None

    def _load(self) -> None:
        """Reads the records, and deletes unfinished files of earlier processes. A file with an
        unreadable record is kept, because its content is complete."""
        contents = {path.name: path for path in self._contents.iterdir()}
        for id, record in list(self._records.known.items()):
            if id in contents:
                self._book(record)
            else:
                del self._records.known[id]
                self._records.delete(id)
        hidden = self._records.unread & contents.keys()
        num_hidden = sum(contents[id].stat().st_size for id in hidden)
        self.bytes.hold(_HIDDEN, num_hidden)
        if hidden:
            logger.warning(
                "files: %d files (%d bytes) are stored but not listed, because their records "
                "cannot be read",
                len(hidden),
                num_hidden,
            )
        for id in contents.keys() - self._records.known.keys() - hidden:
            contents[id].unlink()
        for path in self._partial.iterdir():
            path.unlink()

    def _book(self, record: FileRecord) -> None:
        self._records.known[record.id] = record
        self.files.hold(record.shared_by)
        self.bytes.hold(record.shared_by, record.size)
        self._next_expiry = min(self._next_expiry, _expiry(record))

    def close(self) -> None:
        """Unlocks the directory."""
        os.close(self._lock)

    # Stored files

    def __len__(self) -> int:
        return len(self._records.known)

    @property
    def num_bytes(self) -> int:
        """The bytes of all files, including uploads in progress and files with an unreadable
        record."""
        return self.bytes.used

    def find(self, tenant: str, id: str) -> FileRecord | None:
        """Returns a tenant's file; None = the file does not exist or has expired."""
        self.drop_expired()
        record = self._records.find(tenant, id)
        return None if record is None or self._has_expired(record) else record

    def list(self, tenant: str) -> Sequence[FileRecord]:
        """Returns a tenant's files, oldest first."""
        self.drop_expired()
        return [one for one in self._records.of(tenant) if not self._has_expired(one)]

    def path_of(self, id: str) -> Path:
        """Returns the path of a file's content."""
        return self._contents / id

    # Uploads

    def new_partial(self) -> Path:
        """Returns a path for the content of a new upload, to be passed to `add`."""
        return self._partial / secrets.token_hex(8)

    def has_room(self, owner: str = "") -> bool:
        """Returns whether the owner may add another file."""
        self.drop_expired()
        return self.files.may_take(owner)

    async def add(self, partial: Path, record: FileRecord) -> None:
        """Turns the complete content at `partial` into a file, even if the caller is cancelled.

        Raises:
            OSError: the file was not added; the content stays at `partial`.
        """
        await run_to_end(self._add(partial, record))

    async def _add(self, partial: Path, record: FileRecord) -> None:
        await self.threads.run(self._write, partial, record)
        self._book(record)

    def _write(self, partial: Path, record: FileRecord) -> None:
        content, is_moved = self.path_of(record.id), False
        try:
            # The record first: at the next start a content without a record is deleted, and a
            # record without content is dropped.
            self._records.write(record.id, record)
            partial.replace(content)
            is_moved = True
            sync_directory(self._contents)
        except OSError:
            with suppress(OSError):
                if is_moved:
                    content.replace(partial)
                self._records.delete(record.id)
            raise

    # Deletion

    def pin(self, id: str) -> None:
        """Prevents the deletion of a file until `unpin`."""
        self._pins[id] += 1

    def unpin(self, id: str) -> None:
        """Allows the deletion of a file again."""
        self._pins[id] -= 1
        if not self._pins[id]:
            del self._pins[id]
            if id in self._records.known:
                self._next_expiry = min(self._next_expiry, _expiry(self._records.known[id]))

    async def delete(self, tenant: str, id: str) -> bool:
        """Deletes a file. Returns False if the file does not exist.

        Raises:
            RequestError: a batch uses the file.
            OSError: the file cannot be deleted and still exists.
        """
        record = self.find(tenant, id)
        if record is None:
            return False
        if id in self._pins:
            raise RequestError(
                f"the file {id} cannot be deleted: it is the input of a batch that has not ended"
            )
        await run_to_end(self._delete(record))
        return True

    async def _delete(self, record: FileRecord) -> None:
        self._forget(record.id)
        try:
            await self.threads.run(self._erase, record.id)
        except OSError:
            self._book(record)
            raise

    def drop(self, id: str) -> None:
        """Deletes a file, if it exists, without waiting for the disk."""
        if id in self._records.known:
            self._forget(id)
            self.threads.begin(self._erase_or_log, id)

    def _forget(self, id: str) -> None:
        record = self._records.known.pop(id)
        self.files.give_back(record.shared_by)
        self.bytes.give_back(record.shared_by, record.size)

    def _erase(self, id: str) -> None:
        # The content first: if the disk fails, nothing has changed, and a record without content is
        # dropped at the next start.
        self.path_of(id).unlink(missing_ok=True)
        self._records.delete(id)

    def _erase_or_log(self, id: str) -> None:
        try:
            self._erase(id)
        except OSError as error:
            logger.error(
                "files: %s is deleted for clients but cannot be removed from the disk: %s",
                id,
                error,
            )

    def drop_expired(self) -> None:
        """Deletes some of the expired files; called at every use of the store."""
        now = self._clock()
        if now < self._next_expiry or self._rounds.seconds_left(now):
            return
        expired = sorted(filter(self._has_expired, self._records.known.values()), key=_expiry)
        allowed = self._rounds.allowed(len(self), now)
        for record in expired[:allowed]:
            self.drop(record.id)
        is_behind = len(expired) > allowed
        self._rounds.spend(len(expired[:allowed]), is_behind=lambda: is_behind)
        self._next_expiry = min(
            (_expiry(record) for id, record in self._records.known.items() if id not in self._pins),
            default=_NEVER,
        )

    def _has_expired(self, record: FileRecord) -> bool:
        return _expiry(record) <= self._clock() and record.id not in self._pins

    def check(self) -> None:
        """Asserts that the counted files and bytes agree with the records."""
        assert self.files.used == len(self)
        assert self.bytes.used >= sum(record.size for record in self._records.known.values())
        self.files.check()
        self.bytes.check()


def _expiry(record: FileRecord) -> float:
    return _NEVER if record.expires_at is None else record.expires_at
