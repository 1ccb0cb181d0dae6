"""The OpenAPI document: committed, without drift, and true to the wire format."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tlp_client.errors import InvalidRequest
from tlp_client.wire.measurements import read_measurements
from tlp_client.wire.predict import read_predict
from tlp_service.api import documents

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "client" / "golden"


def test_the_committed_document_is_the_one_that_is_served(server):
    served = json.loads(server.get("/openapi.json")[1])
    committed = json.loads((ROOT / "docs" / "openapi.json").read_text())
    assert served == committed, "run scripts/write_openapi"


def test_every_reference_of_the_document_resolves(server):
    document = json.loads(server.get("/openapi.json")[1])
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def references(node):
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    assert set(references(document)) <= known


def test_the_posting_routes_document_their_statuses(server):
    paths = json.loads(server.get("/openapi.json")[1])["paths"]
    documented = {path: set(paths[path]["post"]["responses"]) for path in ("/v1/predict", "/v1/measurements")}
    assert documented == {
        "/v1/predict": {"200", "400", "404", "409", "413", "422", "429", "500", "503", "504"},
        "/v1/measurements": {"200", "400", "413", "422", "503"},
    }


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/measurements"])
def test_the_codes_that_another_server_may_not_have_are_documented(server, path):
    """Clients decide by the codes whether to wait for another server."""
    answers = json.loads(server.get("/openapi.json")[1])["paths"][path]["post"]["responses"]
    kinds = [InvalidRequest, *InvalidRequest.__subclasses__()]
    assert sorted(kind.code for kind in kinds) == [
        "invalid",
        "unknown_field",
        "unknown_format",
        "unsupported",
    ]
    for kind in kinds:
        assert f"`{kind.code}`" in answers["422"]["description"]


@pytest.mark.parametrize(
    ("model", "golden"),
    [
        (documents.PredictDocument, "predict_request.json"),
        (documents.MeasurementsDocument, "measurement_request.json"),
    ],
)
def test_the_documented_models_accept_the_golden_files(model, golden):
    TypeAdapter(model).validate_json((GOLDEN / golden).read_bytes(), strict=True)


@pytest.mark.parametrize("name", documents.PREDICT_EXAMPLES)
def test_the_predict_examples_are_answered(server, name):
    example = documents.PREDICT_EXAMPLES[name]
    read_predict(example)
    status, answer = server.post("/v1/predict", example)
    assert status == 200
    documents.ScoresDocument.model_validate(answer, strict=True)


@pytest.mark.parametrize("name", documents.MEASUREMENT_EXAMPLES)
def test_the_measurement_examples_are_answered(server, name):
    example = documents.MEASUREMENT_EXAMPLES[name]
    read_measurements(example)
    status, answer = server.post("/v1/measurements", example)
    assert status == 200
    documents.KeptDocument.model_validate(answer, strict=True)


def test_the_registrys_routes_document_the_admin_key(server):
    document = json.loads(server.get("/openapi.json")[1])
    assert document["components"]["securitySchemes"] == {"admin_key": {"type": "http", "scheme": "bearer"}}
    routes = [r for path, of in document["paths"].items() if "/registry" in path for r in of.values()]
    assert len(routes) == 6
    assert all(
        r["security"] == [{"admin_key": []}] and {"401", "403", "503"} <= set(r["responses"]) for r in routes
    )


def test_an_error_is_as_documented(server):
    documents.ErrorDocument.model_validate(server.post("/v1/predict", b"{")[1], strict=True)
