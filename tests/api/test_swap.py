"""Versions that are swapped while the server runs."""

import contextlib
import json
import threading
import time
from pathlib import Path

import pytest
import redis
from models import endless, endless_from, linear_score, write_linear_version
from serving import start, until

from tlp_service.api import documents
from tlp_service.settings import shipped_model
from tlp_service.versions.hints import CHANNEL
from tlp_service.versions.manifest import MAX_DOCUMENT_BYTES
from tlp_service.versions.registry import Registry
from tlp_service.versions.storage import ACTIVE

pytestmark = pytest.mark.slow

KEY = "s3cret-key"
SLOW = 3600  # seconds, where only a hint or a wake can be in time


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Folders of four versions; the raw score is the sum of the stages times 1, 2, 3, 4."""
    folder = tmp_path_factory.mktemp("sources")
    return [write_linear_version(folder / str(factor), float(factor)) for factor in (1, 2, 3, 4)]


@pytest.fixture
def registry(tmp_path, sources):
    """A registry of the four, of which the first serves."""
    registry = Registry(tmp_path / "registry")
    for source in sources:
        registry.publish(source)
    registry.activate(sources[0].name, "test")
    return registry


@pytest.fixture
def launch(tmp_path, registry):
    """Start servers on the registry; all are stopped at the end."""
    servers = []

    def launch(**settings):
        settings = {"registry": tmp_path / "registry", "registry_poll_s": 0.05, "chunk": 16, **settings}
        servers.append(start(tmp_path / f"stream-{len(servers)}", **settings))
        return servers[-1]

    yield launch
    for server in servers:
        with server:
            pass


ONE_LINE = json.dumps(
    {
        "i": [["[]", "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 2, []], [[], [["CI", 3]]]],
        "r": [[1.0], 0, 1.0, 1],
        "v": "v0.6",
    }
).encode()


def served(server):
    return json.loads(server.get("/health/ready")[1])["version"]


def trials_of(version):
    """Return the processes of trials."""
    commands = {path.parent.name: path for path in Path("/proc").glob("[0-9]*/cmdline")}
    found = []
    for pid, path in commands.items():
        with contextlib.suppress(OSError):
            command = path.read_text()
            if "tlp_service.serving.trial" in command and version in command:
                found.append(pid)
    return found


def loaded(server):
    return {m["version"]: m["serving"] for m in json.loads(server.get("/v1/models")[1])["models"]}


def admin(server, method, path, document=None, key=KEY):
    body = None if document is None else json.dumps(document).encode()
    given = key if isinstance(key, bytes) else (key or "").encode("latin-1")
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": b"Bearer " + given} if key else {}
    status, _, answer = server.request(method, path, body, headers)
    return status, json.loads(answer)


def scores_of(factor):
    return pytest.approx([linear_score(factor * s) for s in (3, 2, 0)])


def test_a_new_version_serves_and_rounds_that_began_with_the_old_one_go_on(launch, registry, sources, good):
    names = [source.name for source in sources]
    server = launch(kept_versions=1)
    assert served(server) == names[0]
    assert server.post("/v1/predict", {**good[0], "version": names[1]})[1]["code"] == "version_gone"
    registry.activate(names[1], "test")
    until(lambda: served(server) == names[1])
    _, answer = server.post("/v1/predict", good[0])
    assert (answer["version"], answer["scores"]) == (names[1], scores_of(2))
    _, answer = server.post("/v1/predict", {**good[0], "version": names[0]})
    assert (answer["version"], answer["scores"]) == (names[0], scores_of(1))
    assert loaded(server) == {names[1]: True, names[0]: False}

    registry.activate(names[2], "test")
    until(lambda: served(server) == names[2])
    assert loaded(server) == {names[2]: True, names[1]: False}
    status, answer = server.post("/v1/predict", {**good[0], "version": names[0]})
    assert (status, answer["code"]) == (409, "version_gone")
    status, answer = server.post("/v1/predict", {**good[0], "version": "base-0"})
    assert (status, answer["code"]) == (404, "unknown_version")


@pytest.mark.parametrize("kind", ["json", "log"])
def test_a_round_that_began_at_a_faster_server_goes_on_at_a_slower_one(launch, registry, sources, good, kind):
    """The slower server has not seen the activation yet, and would not poll for an hour."""
    name = sources[1].name
    fast, slow = launch(), launch(registry_poll_s=3600)
    registry.activate(name, "test")
    until(lambda: served(fast) == name)
    _, answer = fast.post("/v1/predict", good[0])
    assert served(slow) == sources[0].name
    if kind == "json":
        status, answer = slow.post("/v1/predict", {**good[0], "version": answer["version"]})
        assert (status, answer["scores"]) == (200, scores_of(2))
    else:
        status, answer = slow.post(
            f"/v1/predict?version={answer['version']}", ONE_LINE, content_type="application/x-ndjson"
        )
        assert (status, answer["scores"]) == (200, [pytest.approx(linear_score(2 * 3))])
    assert answer["version"] == name


def test_who_waits_for_a_version_is_answered_by_its_deadline_and_a_stop_is_clean(
    launch, registry, tmp_path, good
):
    """The trial of the version never ends within the test."""
    stuck = registry.publish(write_linear_version(tmp_path / "stuck", spoil=endless))
    server = launch()
    registry.activate(stuck, "test")
    status, answer = server.post("/v1/predict", {**good[0], "version": stuck}, **{"Tlp-Deadline-S": "1"})
    assert (status, answer["code"]) == (504, "deadline_passed")
    status, answer = server.post("/v1/predict", good[0])
    assert (status, answer["scores"]) == (200, scores_of(1))
    assert trials_of(stuck)
    assert server.stop() == 0
    assert not trials_of(stuck)
    assert stuck not in registry.journal().marks  # an aborted trial says nothing about the version


def test_a_stop_is_clean_though_a_network_never_returns(launch, tmp_path, good):
    server = launch(model=write_linear_version(tmp_path / "stuck", spoil=endless_from(1e6)), threads=1)
    request = {**good[0], "primitives": [["CI", 1], ["CI", 2_000_000]]}
    status, answer = server.post("/v1/predict", request, **{"Tlp-Deadline-S": "1"})
    assert (status, answer["code"]) == (504, "deadline_passed")
    assert server.stop() == 0
    assert "stopped, although these threads still run: tlp-score-0" in server.log


def test_the_metrics_tell_what_serves_and_have_no_series_of_what_does_not(launch, registry, sources, good):
    names = [source.name for source in sources]
    server = launch(kept_versions=1)
    for name in names[1:]:
        server.post("/v1/predict", good[0])
        registry.activate(name, "test")
        until(lambda name=name: served(server) == name)
    server.post("/v1/predict", good[0])
    text = server.get("/metrics")[1].decode()
    assert {n for n in names if n in text} == set(names[2:])
    assert server.metric(f'tlp_model_loaded{{model="published",version="{names[3]}"}}') == 1
    assert server.metric(f'tlp_model_loaded{{model="published",version="{names[2]}"}}') == 0
    assert server.metric("tlp_version_swaps_total") == 3
    assert server.metric(f'tlp_candidates_scored_total{{platform_kind="cpu",version="{names[3]}"}}') == 3


def test_a_version_that_fails_to_load_is_marked_and_the_old_one_serves(launch, registry, sources, good):
    names = [source.name for source in sources]
    server = launch()
    # Activated before it was damaged, so only the load can find out.
    file = registry._storage._path / names[1] / "cpu.onnx"
    whole = file.read_bytes()
    verify, registry._verify = registry._verify, lambda version: None
    file.write_bytes(b"cut")
    registry.activate(names[1], "test")
    until(lambda: registry.journal().active == names[0])
    mark = registry.journal().marks[names[1]]
    assert mark.state == "failed"
    assert f": {names[1]}/cpu.onnx: sha256 differs" in mark.reason
    assert str(registry._storage._path) not in mark.reason
    _, answer = server.post("/v1/predict", good[0])
    assert (answer["version"], answer["scores"]) == (names[0], scores_of(1))
    assert server.metric("tlp_version_failed_loads_total") == 1
    assert server.log.count("can't be loaded") == 1
    registry._verify = verify
    file.write_bytes(whole)
    registry.activate(names[1], "test", force=True)
    until(lambda: served(server) == names[1])


def test_a_server_that_starts_on_a_damaged_version_takes_the_one_before(launch, registry, sources):
    names = [source.name for source in sources]
    registry.activate(names[1], "test")
    (registry._storage._path / names[1] / "gpu.onnx").write_bytes(b"cut")
    assert served(launch()) == names[0]
    assert registry.journal().marks[names[1]].state == "failed"


def test_a_server_that_starts_later_holds_what_the_others_hold(launch, registry, sources):
    names = [source.name for source in sources]
    for name in names:
        registry.activate(name, "test")
    server = launch(kept_versions=2)
    until(lambda: loaded(server) == {names[3]: True, names[2]: False, names[1]: False})


def test_two_servers_agree_within_seconds_by_a_hint_through_redis(launch, registry, sources, tmp_path):
    """Neither polls: the first is woken by the change it made, the second by Redis."""
    from tlp_service.measurements.embedded import embedded_redis

    name = sources[1].name
    with embedded_redis(tmp_path / "redis") as redis_url:
        settings = {"redis_url": redis_url, "registry_poll_s": SLOW, "admin_key": KEY}
        one, two = launch(**settings), launch(**settings)
        with redis.Redis.from_url(redis_url) as client:
            until(lambda: client.pubsub_numsub(CHANNEL)[0][1] == 2)
        status, answer = admin(one, "POST", "/v1/registry/activate", {"version": name, "reason": "better"})
        assert (status, answer["active"]) == (200, name)
        assert answer["history"][-1]["reason"] == "better"
        until(lambda: served(one) == served(two) == name)
        for server in (one, two):
            server.stop()


def test_a_registry_that_is_not_a_folder_is_followed_through_copies(
    launch, registry, sources, tmp_path, good
):
    server = launch(registry=f"local://{tmp_path}/registry")
    assert served(server) == sources[0].name
    registry.activate(sources[1].name, "test")
    until(lambda: served(server) == sources[1].name)
    assert server.post("/v1/predict", good[0])[1]["scores"] == scores_of(2)


def test_a_registry_that_cannot_be_read_leaves_the_old_version_serving(launch, registry, sources):
    server = launch()
    document = registry._storage._path / "active.json"
    whole = document.read_bytes()
    document.write_bytes(b"{")
    until(lambda: "can't be followed" in server.log)
    assert served(server) == sources[0].name
    document.write_bytes(whole)
    registry.activate(sources[1].name, "test")
    until(lambda: served(server) == sources[1].name)


def test_no_answer_mixes_versions_while_they_are_swapped(launch, registry, sources, good):
    factors = {source.name: factor for factor, source in enumerate(sources, 1)}
    server = launch(kept_versions=0)
    lines = b"\n".join(
        json.dumps(
            {
                "i": [[f'["op", {task}]', "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 2, []], [[], [["CI", 3]]]],
                "r": [[1.0], 0, 1.0, 1],
                "v": "v0.6",
            }
        ).encode()
        for task in range(20)
    )
    answers, is_over = [], threading.Event()

    def ask(number):
        while not is_over.is_set():
            if number % 2:
                answers.append((*server.post("/v1/predict", good[0]), (3, 2, 0)))
            else:
                answers.append(
                    (*server.post("/v1/predict", lines, content_type="application/x-ndjson"), (3,) * 20)
                )

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for swap in range(1, 13):
        name = sources[swap % 4].name
        registry.activate(name, "test")
        until(lambda name=name: served(server) == name)
        seen = len(answers)
        until(lambda name=name, seen=seen: name in {a["version"] for _, a, _ in answers[seen:]})
    is_over.set()
    for thread in threads:
        thread.join()
    assert {status for status, *_ in answers} == {200}
    assert {answer["version"] for _, answer, _ in answers} == set(factors)
    for _, answer, stages in answers:
        factor = factors[answer["version"]]
        assert answer["scores"] == pytest.approx([linear_score(factor * s) for s in stages])


def test_without_a_registry_the_shipped_version_is_published_and_serves(tmp_path):
    with start(tmp_path / "data", chunk=16) as server:
        assert served(server) == shipped_model().name
        assert Registry(tmp_path / "data" / "models").journal().active == shipped_model().name


def test_a_named_model_serves_whatever_the_registry_says(launch, registry, sources):
    server = launch(model=sources[2])
    time.sleep(0.3)
    assert served(server) == sources[2].name
    assert registry.journal().active == sources[0].name


@pytest.fixture
def keyed(launch):
    return launch(admin_key=KEY)


ROUTES = [
    ("GET", "/v1/registry"),
    ("GET", "/v1/registry/base-0"),
    ("GET", "/v1/registry/diff?a=x&b=y"),
    ("POST", "/v1/registry/activate"),
    ("POST", "/v1/registry/rollback"),
    ("POST", "/v1/registry/prune"),
]


def test_the_registry_is_closed_to_who_has_no_key(keyed, server):
    for method, path in ROUTES:
        assert admin(keyed, method, path, key=None)[0] == 401
        assert admin(keyed, method, path, key=KEY + "x")[0] == 401
        assert admin(keyed, method, path, key="é")[0] == 401
        status, answer = admin(server, method, path)
        assert (status, answer["code"]) == (403, "not_allowed")
    assert KEY not in keyed.log
    for running, code, reason in (
        (keyed, 401, "no key"),
        (keyed, 401, "wrong key"),
        (server, 403, "no TLP_"),
    ):
        lines = [
            line for line in running.log.splitlines() if f"refused with {code}" in line and reason in line
        ]
        assert any("/v1/registry/activate from 127.0.0.1, client '127.0.0.1'" in line for line in lines)
        assert running.metric(f'tlp_requests_total{{route="/v1/registry/activate",status="{code}"}}') >= 1


def test_a_key_that_is_not_ascii_opens_the_registry(launch):
    assert admin(launch(admin_key="schlüssel"), "GET", "/v1/registry", key="schlüssel".encode())[0] == 200


def test_a_flood_of_refusals_does_not_fill_the_log(keyed):
    for number in range(60):
        headers = {"Tlp-Client": f"worker-{number}"}
        assert keyed.request("GET", "/v1/registry/base-0", headers=headers)[0] == 401
    assert keyed.request("GET", "/v1/registry/base-0", headers={"Tlp-Client": "a\tb"})[0] == 401
    lines = [line for line in keyed.log.splitlines() if "refused with 401" in line]
    assert "GET /v1/registry/{version} from 127.0.0.1, client 'worker-0'" in lines[0]
    assert 20 <= len(lines) < 60
    assert keyed.metric('tlp_requests_total{route="/v1/registry/{version}",status="401"}') == 61


def test_the_registry_over_http(keyed, sources):
    names = [source.name for source in sources]
    status, answer = admin(keyed, "GET", "/v1/registry")
    assert status == 200
    documents.RegistryDocument.model_validate(answer)
    assert {v["version"] for v in answer["versions"]} == {*names, shipped_model().name}
    assert (answer["active"], answer["serving_here"]) == (names[0], names[0])
    _, answer = admin(keyed, "GET", f"/v1/registry/{names[1]}")
    assert documents.VersionDocument.model_validate(answer).manifest["version"] == names[1]
    _, answer = admin(keyed, "GET", f"/v1/registry/diff?a={names[0]}&b={names[1]}")
    assert documents.DiffDocument.model_validate(answer).differs["version"] == [names[0], names[1]]
    assert admin(keyed, "POST", "/v1/registry/activate", {"version": names[1]})[0] == 200
    until(lambda: served(keyed) == names[1])
    assert admin(keyed, "POST", "/v1/registry/rollback")[1]["active"] == names[0]
    until(lambda: served(keyed) == names[0])
    status, answer = admin(keyed, "POST", "/v1/registry/prune", {"keep": 0, "recent": 2})
    documents.PrunedDocument.model_validate(answer)
    assert (status, set(answer["pruned"])) == (200, {names[2], names[3], shipped_model().name})


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "code"),
    [
        ("GET", "/v1/registry/base-0", None, 404, "unknown_version"),
        ("GET", "/v1/registry/diff?a=base-0&b=base-1", None, 404, "unknown_version"),
        ("GET", "/v1/registry/diff?a=base-0", None, 422, "invalid"),
        ("POST", "/v1/registry/activate", {"version": "base-0"}, 404, "unknown_version"),
        ("POST", "/v1/registry/activate", {"version": "../.."}, 404, "unknown_version"),
        ("POST", "/v1/registry/activate", {}, 422, "invalid"),
        ("POST", "/v1/registry/activate", {"version": "base-0", "forse": True}, 422, "invalid"),
        ("POST", "/v1/registry/rollback", None, 409, "version_refused"),
        ("POST", "/v1/registry/prune", {"keep": -1}, 422, "invalid"),
        ("GET", "/v1/registry/activate", None, 404, "unknown_version"),
    ],
)
def test_what_the_registry_refuses(refusing, method, path, document, status, code):
    found, answer = admin(refusing, method, path, document)
    assert (found, answer["code"]) == (status, code)


def break_active(registry, name):
    (registry / ACTIVE).rename(registry / "aside.json")
    (registry / ACTIVE).mkdir()
    return ("GET", "/v1/registry", None), 503, "the log of this server tells why"


def break_lock(registry, name):
    (registry / ".lock").rename(registry / "aside.lock")
    (registry / ".lock").mkdir()
    return ("POST", "/v1/registry/activate", {"version": name}), 503, "Is a directory"


def break_document(registry, name):
    (registry / ACTIVE).write_bytes(b" " * (MAX_DOCUMENT_BYTES + 1))
    return ("GET", "/v1/registry", None), 409, f"{ACTIVE}: expected at most"


def break_network(registry, name):
    (registry / name / "cpu.onnx").write_bytes(b"")
    return ("POST", "/v1/registry/activate", {"version": name}), 409, f"{name} is damaged: {name}/cpu.onnx"


@pytest.mark.parametrize("spoil", [break_active, break_lock, break_document, break_network])
def test_what_is_wrong_with_the_registry_is_told_without_its_place(launch, tmp_path, sources, spoil):
    """Kind of fault: inner addresses in answers. The log has them."""
    registry = Registry(tmp_path / "inner")
    registry.activate(registry.publish(sources[0]), "test")
    name = registry.publish(sources[1])
    server = launch(registry=tmp_path / "inner", admin_key=KEY)
    asked, status, told = spoil(tmp_path / "inner", name)
    found, answer = admin(server, *asked)
    assert found == status
    assert told in answer["error"]
    assert str(tmp_path) not in answer["error"]
    if status == 503:
        assert f"the registry cannot be reached: [Errno 21] Is a directory: '{tmp_path}" in server.log or (
            f"the registry cannot be reached: {tmp_path}" in server.log
        )


@pytest.fixture(scope="module")
def refusing(tmp_path_factory, sources):
    folder = tmp_path_factory.mktemp("refusing")
    registry = Registry(folder / "registry")
    registry.activate(registry.publish(sources[0]), "test")
    with start(folder / "stream", registry=folder / "registry", admin_key=KEY, chunk=16) as server:
        yield server
