"""Register a replica, and enable compaction in its bucket with it: both or neither.

    replica's bucket   permission for compacted logs
    source's bucket    registration

The permission comes first. If the rights to the replica's bucket are missing, nothing was written at all, and a
replicator that finds the registration finds the permission, too. If the registration then fails, the permission is set
back. Alone it would be harmless for the logs, but readers there may rely on never getting a compacted log.
"""

from __future__ import annotations

from keyfold.errors import KeyfoldError
from keyfold.log.manifest_codec import FORMAT
from keyfold.replicas.documents import Enablement, Registration
from keyfold.replicas.registry import EnablementStore, ReplicaRegistry


def register_with_compaction(
    asked: Registration, registry: ReplicaRegistry, enablement_store: EnablementStore
) -> tuple[Registration, Enablement]:
    """Enable compaction for all topics at the replica, then register it. Raise `KeyfoldError`."""
    before = enablement_store.load()
    try:
        enablement = enablement_store.enable(FORMAT)
    except KeyfoldError as error:
        error.hint = f"{error.hint}; {_NOT_REGISTERED}" if error.hint else _NOT_REGISTERED
        raise
    try:
        return registry.add(asked), enablement
    except KeyfoldError as error:
        _set_back(error, asked.url, enablement_store, enablement, before)
        raise


_NOT_REGISTERED = "compaction could not be enabled in the replica's bucket, so the replica was not registered"


def _set_back(
    error: KeyfoldError, url: str, enablement_store: EnablementStore, made: Enablement, before: Enablement
) -> None:
    """Undo the permission after a registration that failed, or say in the error's hint that it stays."""
    left = f"compaction stays enabled at {url}: run the command again, or `keyfold replica disable-compaction {url}`"
    if error.retriable:
        # The source did not answer: the registration may have been saved, and then the permission belongs to it.
        left = f"the registration may have been saved (`keyfold replica list` shows it); {left}"
    else:
        try:
            enablement_store.undo(made, before)
        except KeyfoldError:
            pass  # the hint says what is left
        else:
            return
    error.hint = f"{error.hint}; {left}" if error.hint else left
