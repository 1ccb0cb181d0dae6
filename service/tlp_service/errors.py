"""The exceptions of ``tlp_service``.

::

    ServiceFault
    ├── BadSettings             the server or command does not start
    ├── BadVersion              a model version that cannot be loaded or published
    ├── BadRecords              no model can be trained from the records
    │   └── DamagedRecords      a file of a record store
    ├── NotAllStored            platforms whose records a store could not take
    ├── TrainingDiverged        a loss that is not finite
    └── RequestFault            a request that is not served; see `tlp_service.api.answers` for the statuses
        ├── UnknownName         (code unknown_version, unknown_platform)
        ├── VersionGone         no longer loaded
        ├── VersionRefused      cannot be activated, or no version to roll back to
        ├── InvalidBody         (code invalid, unknown_format, unknown_field, unsupported)
        ├── QueueFull
        ├── ScoringFailed
        ├── NotReady
        └── DeadlinePassed
"""

from __future__ import annotations

from pathlib import Path


class ServiceFault(Exception):
    """Base of everything this package raises on purpose."""


class BadSettings(ServiceFault):
    """A setting is invalid here, such as CUDA on a machine without a GPU."""


class BadVersion(ServiceFault):
    """A model version that is missing, damaged, or of another schema."""


class BadRecords(ServiceFault):
    """Records from which no model can be trained."""


class DamagedRecords(BadRecords):
    """A file of a record store whose content cannot be read.

    Parameters
    ----------
    path : Path
        The file.
    reason : str
        Description of the damage.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path


class NotAllStored(ServiceFault):
    """Platforms whose records could not be written to a store. The records of all other platforms were.

    Parameters
    ----------
    reasons : dict
        Exception for each platform that was not stored.
    """

    def __init__(self, reasons: dict[str, Exception]) -> None:
        super().__init__("; ".join(f"{platform}: {reason}" for platform, reason in reasons.items()))
        self.reasons = reasons


class TrainingDiverged(ServiceFault):
    """A training whose loss is not finite."""


class RequestFault(ServiceFault):
    """A request that is not served as asked; `tlp_service.api.answers` has the status of each kind.

    Parameters
    ----------
    message : str
        Description of the error and its place.
    code : str or None
        Error code for programs; None for the code of the class.
    retry_after : int or None
        Seconds after which the same request may succeed.
    """

    code: str = "internal"

    def __init__(self, message: str, code: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.retry_after = retry_after


class UnknownName(RequestFault):
    """A version or platform that this server does not know.

    `version` is set if the request names an unknown version.
    """

    code = "unknown"
    version: str | None = None


class VersionGone(RequestFault):
    """A version that served once and is no longer loaded."""

    code = "version_gone"
    version: str | None = None


class VersionRefused(RequestFault):
    """A version cannot be activated because it is damaged or marked, or there is none to roll back to."""

    code = "version_refused"


class InvalidBody(RequestFault):
    """Well-formed JSON that breaks the wire format, or that this server does not accept.

    The message names the candidate and primitive.
    """

    code = "invalid"


class QueueFull(RequestFault):
    """The queue is full, or the request could not be scored by its deadline."""

    code = "queue_full"


class ScoringFailed(RequestFault):
    """The network failed or gave a score that is not finite."""

    code = "scoring_failed"


class NotReady(RequestFault):
    """The server is stopping, or the measurement stream is not reachable."""

    code = "not_ready"


class DeadlinePassed(RequestFault):
    """The client's deadline passed before its request was scored."""

    code = "deadline_passed"
