"""The manifest of a model version: everything needed to score with it, and where it came from.

A version is a folder with ``manifest.json`` and one ONNX file a platform kind, or a platform where each has a head of its own. It is immutable; its name
contains a hash of its networks.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec

from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadVersion
from tlp_service.versions.bounded_file import check_size, read_bounded, sha256_of
from tlp_service.versions.onnx_file import check_complete

SCHEMA = 1
MANIFEST = "manifest.json"

#: Pattern of the names of versions and of their files, which become parts of paths.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

#: Maximum bytes of a manifest or of ``active.json``. A manifest of 100 platforms has about 100 kB.
MAX_DOCUMENT_BYTES = 32 << 20

#: Maximum bytes of an ONNX file. The networks of this release are a hundredth of that.
MAX_NETWORK_BYTES = 512 << 20

#: Maximum networks of a version. The trainer makes at most 64.
MAX_NETWORKS = 1024


class ScoreMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fixed monotone function from raw scores to (0, 1], see `tlp_service.inference.score_map`."""

    function: Literal["softsign"]
    center: float
    scale: float


class Validity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The network that tells how likely a candidate is to build and run; it reads what the one beside it reads.

    Parameters
    ----------
    file, sha256, architecture
        As of `Network`. Its raw score is the log odds of a valid run.
    metrics : dict
        Area under the ROC curve inside held-out tasks, and of how many.
    """

    file: str
    sha256: str
    architecture: dict[str, int]
    metrics: dict[str, Any] = {}


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ONNX file of a version, of a platform kind or of one platform: what it reads, what it was trained on, how well it ranks.

    Parameters
    ----------
    platform_kind : {"cpu", "gpu"}
        The kind of target whose candidates it scores.
    file, sha256 : str
        File beside the manifest, and its digest.
    features : str
        Name of its family, see `tlp_service.families`: what it reads is fixed by this name and the platform kind.
    steps, row_width : int
        Rows that it reads of a candidate, and numbers of a row.
    platforms : list of str
        Platforms it was trained on; where it tells them apart, each by its number here. Those of all networks of a kind begin alike.
    serves : str or None
        The one platform that it scores, of those that it tells apart; None for a network that scores all of `platforms`.
    score_map : ScoreMap
        From raw to served score.
    trained_on : dict
        Counts of tasks and candidates a part of the split.
    metrics : dict
        Ranking of the held-out tasks, beside that of random scores.
    architecture : dict
        Sizes of the network, to build it again from its weights.
    validity : Validity or None
        Tells what will fail, where it was trained on runs that did.
    """

    platform_kind: PlatformKind
    file: str
    sha256: str
    features: str
    steps: int
    row_width: int
    platforms: list[str]
    score_map: ScoreMap
    trained_on: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    architecture: dict[str, int] = {}
    validity: Validity | None = None
    serves: str | None = None

    def scores(self, platform: str) -> bool:
        """Return whether it is for a platform, or for all of a kind where that is named."""
        if self.serves is not None:
            return platform == self.serves
        return platform == self.platform_kind or platform in self.platforms

    @property
    def files(self) -> list[str]:
        """Names of its files."""
        return [self.file] + ([self.validity.file] if self.validity is not None else [])


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a version is.

    Parameters
    ----------
    schema : int
        Version of this document's form; `SCHEMA` is the one that this server reads.
    model : str
        The architecture's preset, e.g. ``published``.
    version : str
        ``<model>-<12 hex digits>``, see `version_name`.
    created : str
        UTC time, ISO 8601.
    networks : list of Network
        One a platform kind; or several, of which the first also scores the platforms of its kind that none is for, and those that serve one
        platform take its place there.
    training : dict
        Settings of the training, and the records it used and left out, by platform and by cause.
    """

    schema: int
    model: str
    version: str
    created: str
    networks: list[Network]
    training: dict[str, Any] = {}

    @classmethod
    def of_now(cls, model: str, networks: list[Network], training: dict[str, Any]) -> Manifest:
        """Return the manifest of a version that is made now."""
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(SCHEMA, model, version_name(model, networks), created, networks, training)

    @property
    def platforms(self) -> frozenset[str]:
        """Platforms that the version was trained on."""
        return frozenset(platform for network in self.networks for platform in network.platforms)

    def known(self, platform: str) -> str | None:
        """Return a platform if the version was trained on it; None, which leaves it to the target, if not."""
        return platform if self.networks_of(platform) else None

    def networks_of(self, platform: str) -> list[Network]:
        """Return the networks that score a platform, those that serve it alone first."""
        return sorted(
            (n for n in self.networks if n.scores(platform)), key=lambda network: network.serves is None
        )

    def network(self, kind: PlatformKind) -> Network | None:
        """Return the network that scores any platform of a kind, if there is one."""
        return next((n for n in self.networks if n.platform_kind == kind and n.serves is None), None)

    def serving(self, kind: PlatformKind, platform: str) -> Network | None:
        """Return the network of a kind that scores a platform, known or not, if there is one."""
        return next((n for n in self.networks_of(platform) if n.platform_kind == kind), self.network(kind))

    def numbered(self, kind: PlatformKind) -> list[str]:
        """Return the platforms that the networks of a kind tell apart, in the order of their numbers."""
        return max((n.platforms for n in self.networks if n.platform_kind == kind), key=len, default=[])


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a version folder and the digests of its files.

    Raises
    ------
    BadVersion
        If the folder, the manifest or a network is missing, damaged, or of another schema.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BadVersion(f"no model version at {folder}: {MANIFEST} is missing")
    manifest = parse_manifest(read_bounded(path, MAX_DOCUMENT_BYTES), str(path))
    for network in manifest.networks:
        for part in (network, network.validity):
            if part is not None:
                _check_file(path, part.file, part.sha256)
    return manifest


def parse_manifest(encoded: bytes, where: str) -> Manifest:
    """Read and check a manifest, but not the files that it names.

    Raises
    ------
    BadVersion
        If it is damaged or of another schema; names `where`.
    """
    try:
        document = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadVersion(f"{where}: not JSON that can be read: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise BadVersion(f"{where}: manifest schema {schema!r}, this server reads {SCHEMA}")
    try:
        manifest = msgspec.convert(document, Manifest)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadVersion(f"{where}: {error}") from None
    if not manifest.networks:
        raise BadVersion(f"{where}: no networks")
    if len(manifest.networks) > MAX_NETWORKS:
        raise BadVersion(f"{where}: networks: expected at most {MAX_NETWORKS}, got {len(manifest.networks)}")
    for name in (name for network in manifest.networks for name in network.files):
        if not NAME.fullmatch(name) or name == MANIFEST:
            raise BadVersion(
                f"{where}: file: expected the name of a file beside the manifest, got {name[:140]!r}"
            )
    expected = version_name(manifest.model, manifest.networks)
    if manifest.version != expected:
        raise BadVersion(f"{where}: the version is {manifest.version!r}, its networks make it {expected!r}")
    if not NAME.fullmatch(manifest.version):
        raise BadVersion(
            f"{where}: model: expected letters, digits and ._- of at most 115 characters, got {manifest.model[:140]!r}"
        )
    for network in manifest.networks:
        if not 0 < network.score_map.scale < math.inf:
            raise BadVersion(f"{where}: the scale of a score map is positive, not {network.score_map.scale}")
    return manifest


def _check_file(path: Path, name: str, sha256: str) -> None:
    file = path.parent / name
    if not file.is_file():
        raise BadVersion(f"{path}: network {name!r} is missing")
    check_size(file, file.stat().st_size, MAX_NETWORK_BYTES)
    if sha256_of(file) != sha256:
        raise BadVersion(f"{file}: sha256 differs from the manifest's; the file is damaged")
    with file.open("rb") as opened:
        check_complete(opened, str(file))


def write_version(folder: Path, manifest: Manifest, files: dict[str, Path]) -> Path:
    """Write a version as a new folder below `folder`, aside and then renamed, and return its path.

    Parameters
    ----------
    files : dict
        File name in the version -> file to copy.

    Raises
    ------
    BadVersion
        If this version exists already with other contents: versions are immutable.
    """
    target = folder / manifest.version
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{manifest.version}-", dir=folder))
    try:
        for name, source in files.items():
            shutil.copyfile(source, aside / name)
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
        (aside / MANIFEST).write_bytes(encoded)
        aside.chmod(0o755)
        if target.exists():
            # Encoded, for a figure that is NaN is written as null.
            if msgspec.json.encode(read_manifest(target).networks) != msgspec.json.encode(manifest.networks):
                raise BadVersion(
                    f"{target} exists, and its manifest states other platforms or figures for its networks; "
                    "a version is immutable, so write to another folder"
                )
        else:
            os.replace(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def version_name(model: str, networks: Sequence[Network]) -> str:
    """Return the name of a version: the model and a hash over all that decides its scores."""
    own_heads = len({n.platform_kind for n in networks}) < len(networks)
    decides = [
        [n.platform_kind, n.sha256, n.features, n.steps, n.row_width, msgspec.to_builtins(n.score_map)]
        # A network with sizes of its own may read the numbers of platforms; those of the paper's sizes do not.
        + ([n.platforms] if n.architecture or own_heads else [])
        + ([n.validity.sha256] if n.validity is not None else [])
        + ([n.serves] if n.serves is not None else [])
        for n in sorted(networks, key=lambda n: n.platform_kind)
    ]
    return f"{model}-{hashlib.sha256(msgspec.json.encode(decides)).hexdigest()[:12]}"
