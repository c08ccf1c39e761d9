"""The commit: swap the manifest by compare-and-set, and never be wrong about whether it happened.

    1. Apply the edit to the newest manifest known, under a fresh commit id; encode.
    2. PUT with If-Match on that manifest's ETag.
       won           done
       409           the store decided nothing: retry the same PUT
       unknown       (timeout, 5xx) retry the same PUT: it may have landed, or may still land. A read that still shows
                     the old manifest proves nothing, so no read ends this state; only a PUT that wins or gets 412 does
       404           the manifest is gone: stop, never create a new one
       412           read the manifest. If it has this commit's id for this role, the commit landed. If it lists one of
                     this commit's objects (also as replaced), the commit landed, and others followed. Otherwise apply
                     the edit to the manifest that was read: go to 1, or stop with the edit's error (`Fenced`,
                     `OffsetMoved`, `SegmentsMoved`)

After 412 the old ETag never returns, because every manifest has a fresh commit id. So no request of this commit that is
still in flight can succeed. Commits never delete uploaded objects.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from random import Random

from keyfold.errors import (
    CommitUnknown,
    ConditionUndecided,
    Corrupt,
    Fenced,
    KeyfoldError,
    ManifestLost,
    ObjectNotFound,
    ObjectTooLarge,
    PreconditionFailed,
    StoreUnavailable,
)
from keyfold.log.edits import Author, Edit, commit_id_of, with_commit_id
from keyfold.log.manifest import UNSTAMPED, Manifest, stamped
from keyfold.log.manifest_codec import MANIFEST_BYTES_MAX, decode_manifest, encode_manifest, require_writable
from keyfold.log.names import Place
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Blob, ObjectStore, Update


@dataclass(frozen=True, slots=True)
class Pinned:
    """One version of a manifest: its ETag, and a store time (ms) at which it had certainly landed.

    `modified_ms` is the store's time of the write (`Last-Modified`, whole seconds); `UNSTAMPED` for a version that this
    process has just written. It is only for displaying an age, never for a wait.
    """

    manifest: Manifest
    etag: str
    seen_ms: int
    modified_ms: int = UNSTAMPED


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits edits to one partition's manifest."""

    store: ObjectStore
    place: Place
    retry: RetryPolicy

    def read(self) -> Pinned:
        """Read the newest manifest. Raises `ObjectNotFound`, `Corrupt`, `FormatTooNew`."""
        blob = self.retry.repeat(lambda: get_manifest(self.store, self.place))
        return Pinned(decode_manifest(blob.data, self.place), blob.etag, blob.date_ms, blob.last_modified_ms)

    def commit(
        self,
        base: Pinned,
        edit: Edit,
        author: Author,
        objects: frozenset[str] = frozenset(),
        tried: set[str] | None = None,
    ) -> Pinned:
        """Apply `edit` to the log, starting with `base`, the newest version that the caller knows.

        An author without a claim leaves no commit id and writes no times: it may run anywhere, and does not change the
        log's contents. Its edit is applied again after a 412, so it must be idempotent. `objects` are the names that
        the edit adds: they prove that it landed when its commit id has already been replaced. `tried` collects the
        commit ids of this edit, for a caller that retries the call. Raises the errors of the edit, `ManifestLost`,
        `FormatTooNew`, and `CommitUnknown` if the store does not answer in time: the caller may then retry the call
        with the same objects.
        """
        tried = set() if tried is None else tried
        for _ in itertools.count():
            require_writable(base.manifest)
            next_manifest = self._next(base, edit, author)
            tried.add(commit_id_of(next_manifest, author))
            won = self._swap(base, next_manifest)
            if won is not None:
                return won
            current = self._read_again()
            if any(_landed(current.manifest, author, commit_id, objects) for commit_id in tried):
                return current
            require_same_log(base.manifest, current.manifest)
            base = current
        raise AssertionError

    def _next(self, base: Pinned, edit: Edit, author: Author) -> Manifest:
        manifest = base.manifest if author is None else stamped(base.manifest, base.seen_ms)
        edited = edit(manifest, base.seen_ms)
        next_manifest = replace(edited, version=base.manifest.version + 1)
        return with_commit_id(next_manifest, author, new_commit_id(self.retry.random))

    def _swap(self, base: Pinned, manifest: Manifest) -> Pinned | None:
        """PUT until the store accepts or refuses; return None if it refused."""
        data = encode_manifest(manifest)
        key = self.place.manifest_key
        try:
            result = self.retry.repeat(lambda: self.store.put(key, data, Update(base.etag)))
        except PreconditionFailed:
            return None
        except ObjectNotFound as error:
            raise manifest_lost(self.place, "was deleted while this process used it") from error
        except (StoreUnavailable, ConditionUndecided) as error:
            raise self._unknown(error) from error
        return Pinned(manifest, result.etag, result.date_ms)

    def _read_again(self) -> Pinned:
        try:
            return self.read()
        except ObjectNotFound as error:
            raise manifest_lost(self.place, "was deleted while this process used it") from error
        except StoreUnavailable as error:
            raise self._unknown(error) from error

    def _unknown(self, error: KeyfoldError) -> CommitUnknown:
        return CommitUnknown(
            self.place.topic,
            self.place.partition,
            f"the store did not confirm a commit of `{self.place.manifest_key}` within {self.retry.timeout_s:g} s: "
            f"{error.message}",
            hint="the commit may have landed; no uploaded object was deleted, and the same commit can be retried",
        )


def get_manifest(store: ObjectStore, place: Place) -> Blob:
    """Read the bytes of a partition's manifest. Raises `Corrupt` if it is too large, and the store's errors."""
    try:
        return store.get(place.manifest_key, MANIFEST_BYTES_MAX)
    except ObjectTooLarge as error:
        hint = "keyfold does not write manifests of that size; restore an older version of the object"
        raise Corrupt(place.topic, place.partition, f"the manifest {error.message}", hint=hint) from error


def new_commit_id(random: Random) -> str:
    """Return a unique commit id."""
    return f"{random.getrandbits(128):032x}"


def _landed(manifest: Manifest, author: Author, commit_id: str, objects: frozenset[str]) -> bool:
    """Return whether a manifest shows this commit. False alone proves nothing."""
    if commit_id and commit_id_of(manifest, author) == commit_id:
        return True
    return bool(objects & (manifest.object_names() | {r.name for r in manifest.replaced}))


def require_same_log(before: Manifest, now: Manifest) -> None:
    """Raise `Fenced` if a log was created again (reset, repair): its epochs are unrelated to the old ones."""
    if before.log_id != now.log_id:
        raise Fenced(
            now.topic,
            now.partition,
            f"the log was deleted and created again while this process used it: its log id was {before.log_id} and is "
            f"now {now.log_id}",
            hint="nothing was written to the new log; find out what deleted the old one, then restart this process",
        )


def manifest_lost(place: Place, what: str) -> ManifestLost:
    """Return the error for a partition that has a log but no manifest."""
    return ManifestLost(
        place.topic,
        place.partition,
        f"the manifest `{place.manifest_key}` {what}",
        hint="this process has changed nothing; find out what deletes objects there, then write the manifest again "
        f"from the segments with `{place.command('repair')}`",
    )
