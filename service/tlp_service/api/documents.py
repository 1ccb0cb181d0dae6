"""What the OpenAPI document says of the routes: bodies, answers, examples.

The hot routes read raw bytes, so these models only describe; a test holds them against the wire format's
golden files.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tlp_client.wire.fields import CACHED_HEADER, CANDIDATES_HEADER, CLIENT_HEADER, DEADLINE_HEADER

Primitive = list[int | str | list[int]]


_DIALECT_TEXT = (
    "Name of the tuner's dialect, in which primitives and records are written; 'ansor' by default."
)


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class TaskDocument(_Document):
    """The task of the candidates."""

    workload_key: str = Field(description="As TVM writes it.")
    target: str = Field(description="TVM's target text.")
    platform: str | None = Field(None, description="Hardware; without it the target decides.")
    dialect: str | None = Field(None, description=_DIALECT_TEXT)


class PredictDocument(_Document):
    """Candidates of one task: index lists into `primitives`, or lists of primitives without it."""

    format: int = Field(1, description="Version of the wire format.")
    task: TaskDocument
    version: str | None = Field(None, description="Model version to score with.")
    on_invalid: str = Field("reject", description="'reject' or 'report': what an invalid candidate does.")
    validity: bool = Field(False, description="Whether to tell how likely each candidate is to run.")
    primitives: list[Primitive] | None = Field(None, description="The distinct primitives.")
    candidates: list[list[int]] | list[list[Primitive]]


class CandidateError(_Document):
    """Why a candidate has no score."""

    candidate: int
    error: str
    line: int | None = None


class ScoresDocument(_Document):
    """One score per candidate, in order; null for an invalid one. Higher is faster."""

    format: int
    model: str
    version: str
    scores: list[float | None]
    errors: list[CandidateError]
    lines: list[int] | None = None
    validity: list[float | None] | None = Field(
        None, description="How likely each candidate is to build and run."
    )


class MeasuredDocument(_Document):
    """A record, as it stands on a line of a tuning log, under the client's id."""

    id: str
    record: dict[str, Any]


class MeasurementsDocument(_Document):
    """Measured records, and who measured them."""

    format: int = Field(1, description="Version of the wire format.")
    worker: str
    platform: str | None = Field(None, description="Hardware; without it the kind of the target.")
    version: str | None = Field(None, description="Model version that the search used.")
    dialect: str | None = Field(None, description=_DIALECT_TEXT)
    on_invalid: str = Field("reject", description="'reject' or 'report': what an invalid record does.")
    records: list[MeasuredDocument]


class RecordError(_Document):
    """Why a record was refused."""

    record: int
    error: str


class KeptDocument(_Document):
    """What became of the records."""

    format: int
    accepted: int
    duplicates: int
    rejected: list[RecordError]


class ReadyDocument(_Document):
    """The serving version, and whether measurements can be kept."""

    status: str = Field(description="'ready'.")
    model: str
    version: str
    provider: str
    measurements: str = Field(description="'kept', or the reason why measurements cannot be kept now.")


class KeepingDocument(_Document):
    """The answer while measurements can be kept."""

    measurements: str = Field(description="'kept'.")


class MarkDocument(_Document):
    """Why a version may not serve."""

    state: str = Field(description="'rejected' by the gate, or 'failed' to load.")
    reason: str
    at: str
    figures: dict[str, Any]


class VersionDocument(_Document):
    """A version of the registry."""

    version: str
    model: str
    created: str
    active: bool
    mark: MarkDocument | None
    manifest: dict[str, Any] | None = Field(None, description="Where one version is asked for.")


class ActivationDocument(_Document):
    """A version that began to serve."""

    version: str
    at: str
    by: str
    reason: str
    is_return: bool


class ServingDocument(_Document):
    """Which version serves, and which ones did."""

    active: str | None = Field(description="By the registry.")
    serving_here: str = Field(description="By this server, which may be loading the active one.")
    history: list[ActivationDocument]


class RegistryDocument(ServingDocument):
    """All that the registry holds."""

    versions: list[VersionDocument]


class DiffDocument(_Document):
    """In what two versions differ."""

    a: str
    b: str
    differs: dict[str, list[Any]] = Field(description="Field of the manifest -> its values in both.")


class PrunedDocument(_Document):
    """The versions that are deleted."""

    pruned: list[str]


class ActivateDocument(_Document):
    """Which version shall serve."""

    version: str
    reason: str = ""
    force: bool = Field(False, description="Whether a mark is overruled.")


class RollbackDocument(_Document):
    """Why the version before shall serve."""

    reason: str = ""


class PruneDocument(_Document):
    """What stays."""

    keep: int = Field(10, ge=0, description="Newest versions that stay.")
    recent: int = Field(10, ge=0, description="Versions that served last and stay.")


class ErrorDocument(_Document):
    """Every answer other than 200."""

    error: str = Field(description="What is wrong, and where.")
    code: str = Field(
        description="For programs, e.g. unknown_platform. Later releases may add codes: decide by the status first."
    )


_TASK = {"workload_key": '["matmul", 256, 256, 256]', "target": "llvm -keys=cpu -mcpu=core-avx2"}
_STEPS = [["CI", 1], ["SP", 2, 0, 256, [16, 4, 1], 1], ["SP", 2, 0, 256, [4, 4, 8], 1], ["AN", 2, 3, 2]]

PREDICT_EXAMPLES = {
    "distinct primitives": {
        "format": 1,
        "task": _TASK,
        "primitives": _STEPS,
        "candidates": [[0, 1, 3], [0, 2, 3], [0, 2]],
    },
    "nested": {"format": 1, "task": _TASK, "candidates": [[_STEPS[0], _STEPS[1]], [_STEPS[0], _STEPS[2]]]},
}

MEASUREMENT_EXAMPLES = {
    "one record": {
        "format": 1,
        "worker": "host-7",
        "platform": "epyc-9004-2c",
        "records": [
            {
                "id": "host-7-1",
                "record": {
                    "i": [
                        [_TASK["workload_key"], _TASK["target"], [2, 64, 64, 0, 0, 0, 0, 0], "", 2, []],
                        [[], _STEPS],
                    ],
                    "r": [[0.00103, 0.00101], 0, 0.52, 1795959921],
                    "v": "v0.6",
                },
            }
        ],
    }
}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model, which refers to others as components of the document."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return schema


def _body(model: type[BaseModel], examples: dict[str, Any]) -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": schema_of(model),
                    "examples": {name: {"value": value} for name, value in examples.items()},
                },
                "application/x-ndjson": {
                    "schema": {"type": "string", "description": "A tuning log: one record a line."}
                },
            },
        }
    }


def _query(*parameters: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in parameters
    ]


def _header(name: str, type_: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": type_}}


def _admin(answer: type[BaseModel], *statuses: int, body: type[BaseModel] | None = None, **more: Any) -> Any:
    extra: dict[str, Any] = {"security": [{"admin_key": []}], **more}
    if body is not None:
        content = {"application/json": {"schema": schema_of(body)}}
        extra["requestBody"] = {"required": body is ActivateDocument, "content": content}
    responses = {200: {"model": answer}, **_errors(401, 403, *statuses, 503)}
    return {"responses": responses, "openapi_extra": extra}


#: Status -> description of its codes, for statuses with several.
_CODES = {
    400: "`malformed`: the body is not JSON, or incomplete. `content_type`, `unsupported`: this server "
    "does not read bodies of this type or encoding.",
    404: "`unknown_version`, `unknown_platform`: this server does not have it. `http`: there is no such route.",
    409: "`version_gone`: the version is no longer loaded. `version_refused`: the version must not serve.",
    422: "`invalid`: the request is wrong for every server; the error names the place. "
    "`unknown_format`: the request has another wire format. `unknown_field`: it has a field that "
    "this server does not know. `unsupported`: it has a value that this server does not know. "
    "Another release may accept the last three.",
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    described = {status: {"description": _CODES[status]} if status in _CODES else {} for status in statuses}
    return {status: {"model": ErrorDocument, **described[status]} for status in statuses}


_PLATFORM = ("platform", "Hardware of all records of a tuning log.")
_VERSION = ("version", "Model version, for a tuning log.")
_WORKER = ("worker", "Who measured a tuning log.")
_DIALECT = ("dialect", "Dialect of a tuning log; 'ansor' by default.")

PREDICT: dict[str, Any] = {
    "responses": {200: {"model": ScoresDocument}, **_errors(400, 404, 409, 413, 422, 429, 500, 503, 504)},
    "openapi_extra": {
        **_body(PredictDocument, PREDICT_EXAMPLES),
        "parameters": [
            *_query(_PLATFORM, _VERSION, _DIALECT),
            _header(DEADLINE_HEADER, "number", "Seconds the client will wait."),
            _header(CLIENT_HEADER, "string", "Who asks; clients are served in turn. Its address by default."),
            _header(
                CANDIDATES_HEADER, "integer", "Candidates of the body; a full server then refuses unread."
            ),
            _header(
                CACHED_HEADER,
                "integer",
                "Candidates that the client scored from its cache, for the metrics; counted up to TLP_MAX_CANDIDATES.",
            ),
        ],
    },
}
MEASUREMENTS: dict[str, Any] = {
    "responses": {200: {"model": KeptDocument}, **_errors(400, 413, 422, 503)},
    "openapi_extra": {
        **_body(MeasurementsDocument, MEASUREMENT_EXAMPLES),
        "parameters": _query(_WORKER, _PLATFORM, _VERSION, _DIALECT),
    },
}
REGISTRY: dict[str, Any] = _admin(RegistryDocument)
VERSION: dict[str, Any] = _admin(VersionDocument, 404, 409)
DIFF: dict[str, Any] = _admin(
    DiffDocument, 404, 409, 422, parameters=_query(("a", "One version."), ("b", "The other version."))
)
ACTIVATE: dict[str, Any] = _admin(ServingDocument, 400, 404, 409, 413, 422, body=ActivateDocument)
ROLLBACK: dict[str, Any] = _admin(ServingDocument, 400, 409, 413, 422, body=RollbackDocument)
PRUNE: dict[str, Any] = _admin(PrunedDocument, 400, 413, 422, body=PruneDocument)
READY: dict[str, Any] = {"responses": {200: {"model": ReadyDocument}, **_errors(503)}}
KEPT: dict[str, Any] = {"responses": {200: {"model": KeepingDocument}, **_errors(503)}}

#: models that the bodies above refer to by name
REFERENCED: tuple[type[BaseModel], ...] = (TaskDocument, MeasuredDocument)
