"""Selects the network of a version that scores a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from tlp_client.tasks import PlatformKind, platform_kind, target_names
from tlp_service.errors import InvalidBody, UnknownName
from tlp_service.versions.manifest import Manifest, Network

#: Values of a target's device attributes that name no device: a platform kind, or TVM's placeholders.
_NO_DEVICES = frozenset([*get_args(PlatformKind), "unknown", "generic"])


def contradiction(manifest: Manifest, platform: str | None, target: str) -> str | None:
    """Return how a platform and a target contradict each other; None if they do not, or if one is unknown."""
    kind = platform_kind(target)
    kinds = {n.platform_kind for n in manifest.networks if platform is not None and n.scores(platform)}
    if kind is None or not kinds or kind in kinds:
        return None
    return f"{platform!r} is a {kinds.pop()}, the target {target!r:.80} is a {kind}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The network that scores a request.

    Parameters
    ----------
    network : Network
        A network of the version.
    platform : str or None
        The platform to score for, if the network was trained on it; else None.
    """

    network: Network
    platform: str | None


def choose_network(manifest: Manifest, platform: str | None, target: str) -> Choice:
    """Return the network and platform of a request: by its stated platform if it has one, else by its target.

    Many devices share one target string (K80 and V100 do), so a stated platform decides. ``cpu`` and ``gpu``
    are platforms, too, and mean any hardware of the kind. Measurements under these names train a network that scores
    only requests that state them, since a request without a known platform may come from any hardware.

    Raises
    ------
    UnknownName
        If the stated platform is none of the version's.
    InvalidBody
        If platform and target contradict each other, or neither decides.
    """
    kind = platform_kind(target)
    if platform is not None:
        having = manifest.networks_of(platform)
        named = next((n for n in having if n.platform_kind == kind), having[0] if having else None)
        if named is None:
            known = [p for n in manifest.networks for p in (n.platform_kind, *n.platforms) if n.scores(p)]
            raise UnknownName(
                f"task.platform: version {manifest.version} does not know {platform!r}; "
                f"it knows {', '.join(dict.fromkeys(known))}",
                code="unknown_platform",
            )
        if found := contradiction(manifest, platform, target):
            raise InvalidBody(f"task.platform: {found}")
        return _choice(named, [platform])
    names = target_names(target)
    for name in names:
        having = [] if name in _NO_DEVICES else manifest.networks_of(name)
        by_name = next((n for n in having if kind in (None, n.platform_kind)), None)
        if by_name is not None:
            return _choice(by_name, [name])
    if kind is None:
        raise InvalidBody(
            f"task: neither 'platform' nor the target {target!r:.80} tells whether this is a cpu or a gpu"
        )
    by_kind = manifest.network(kind)
    if by_kind is None:
        raise UnknownName(
            f"task.target: version {manifest.version} has no network for {kind} targets",
            code="unknown_platform",
        )
    return _choice(by_kind, names)


def _choice(network: Network, names: Sequence[str]) -> Choice:
    if network.serves is not None:
        names = [network.serves]
    return Choice(network, next((name for name in names if name in network.platforms), None))
