"""The exceptions of ``tlp_service`` and the statuses they answer with.

::

    ServiceFault                      status
    ├── BadSettings                   none: the server or command does not start
    ├── BadVersion                    none: a model version that cannot be loaded or published
    ├── BadRecords                    none: nothing to train on
    │   └── DamagedRecords            none: a file of a record store
    ├── NotAllStored                  none: platforms whose records a store could not take
    ├── TrainingDiverged              none: a loss that is not finite
    └── ApiError                      the `status` of the class
        ├── MalformedBody             400   (code malformed, content_type, unsupported)
        ├── NotAuthorized             401   without the admin key
        ├── NotAllowed                403   there is no admin key, so nobody may
        ├── UnknownName               404   (code unknown_version, unknown_platform)
        ├── VersionGone               409   no longer loaded
        ├── VersionRefused            409   may not serve, or there is none to return to
        ├── BodyTooLarge              413
        ├── InvalidBody               422   (code invalid, unknown_format, unknown_field, unsupported)
        ├── QueueFull                 429   with Retry-After
        ├── ClientGone                499   which nobody receives
        ├── ScoringFailed             500
        ├── NotReady                  503
        └── DeadlinePassed            504

The readers of the wire format raise ``tlp_client.errors.InvalidRequest``, which is answered as InvalidBody with its own code.
Every answer other than 200 is ``{"error": "<what and where>", "code": "<for programs>"}``.

``invalid`` and ``malformed`` mean that the request is wrong for every server. ``unknown_format``, ``unknown_field`` and
``unsupported`` mean that this server does not accept the request, and that another server or release may.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class ServiceFault(Exception):
    """Base of everything this package raises on purpose."""


class BadSettings(ServiceFault):
    """A setting that cannot be followed, such as CUDA where there is none."""


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
        What is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path


class NotAllStored(ServiceFault):
    """Platforms whose records could not be written to a store. The records of all other platforms were.

    Parameters
    ----------
    reasons : dict
        Platform -> why.
    """

    def __init__(self, reasons: dict[str, Exception]) -> None:
        super().__init__("; ".join(f"{platform}: {reason}" for platform, reason in reasons.items()))
        self.reasons = reasons


class TrainingDiverged(ServiceFault):
    """A training whose loss is not finite."""


class ApiError(ServiceFault):
    """An answer other than 200."""

    status: ClassVar[int] = 500
    code: str = "internal"

    def __init__(self, message: str, code: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.retry_after = retry_after


class MalformedBody(ApiError):
    """The body is not JSON, is incomplete, or is of a type or encoding that the route does not read."""

    status, code = 400, "malformed"


class NotAuthorized(ApiError):
    """The admin key is missing or another."""

    status, code = 401, "not_authorized"


class NotAllowed(ApiError):
    """The server has no admin key, so its registry is not changed over HTTP."""

    status, code = 403, "not_allowed"


class UnknownName(ApiError):
    """A version or platform that this server does not have; `version` is set if the request asks for that version."""

    status, code = 404, "unknown"
    version: str | None = None


class VersionGone(ApiError):
    """A version that served once and is no longer loaded."""

    status, code = 409, "version_gone"
    version: str | None = None


class VersionRefused(ApiError):
    """A version that may not serve: damaged, or marked; or there is none to return to."""

    status, code = 409, "version_refused"


class BodyTooLarge(ApiError):
    """More bytes or candidates than one request may hold."""

    status, code = 413, "too_large"


class InvalidBody(ApiError):
    """Well-formed JSON that breaks the wire format, or that this server does not accept; names the candidate and primitive."""

    status, code = 422, "invalid"


class QueueFull(ApiError):
    """More candidates wait than may wait, or than can be scored by the request's deadline."""

    status, code = 429, "queue_full"


class ClientGone(ApiError):
    """The client closed its connection before it was answered; seen only in the metrics."""

    status, code = 499, "client_gone"


class ScoringFailed(ApiError):
    """The network failed or gave a score that is not finite."""

    status, code = 500, "scoring_failed"


class NotReady(ApiError):
    """Stopping, or the measurement stream cannot be reached."""

    status, code = 503, "not_ready"


class DeadlinePassed(ApiError):
    """The client's deadline passed before its request was scored."""

    status, code = 504, "deadline_passed"
