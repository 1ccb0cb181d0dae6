"""Deletes rejected versions of the trainer, which would otherwise fill the disk of the registry."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tlp_service.errors import BadVersion
from tlp_service.versions.registry import Held, Registry

log = logging.getLogger(__name__)

#: Maximum number of the trainer's rejected versions that a registry keeps (the newest). Each takes several megabytes.
MAX_REJECTED = 20
#: Key under `training` in a version's manifest; only the trainer writes it, so it marks the trainer's versions.
VERDICT = "verdict"


def delete_rejected(registry: Registry) -> None:
    """Delete the oldest versions that the gate rejected.

    Versions that serve or served recently are kept, and so are all versions that a person published.
    """
    _delete(registry, MAX_REJECTED, _is_rejected)


def withdraw(registry: Registry, version: str) -> None:
    """Delete a version that was published just now and must not serve."""
    _delete(registry, 0, lambda held: held.manifest.version == version and held.mark is None)


def _is_rejected(held: Held) -> bool:
    """Return whether a step of learning made a version and the gate rejected it."""
    return held.mark is not None and held.mark.state == "rejected" and VERDICT in held.manifest.training


def _delete(registry: Registry, keep: int, among: Callable[[Held], bool]) -> None:
    try:
        if deleted := registry.prune(keep, among=among):
            log.info("deleted rejected versions: %s", ", ".join(deleted))
    except (OSError, BadVersion) as error:  # retried after the next rejected version
        log.warning("rejected versions are not deleted: %s", error)
