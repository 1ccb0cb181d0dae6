import errno
import io
import json
import re

import msgspec
import onnx
import pytest
from models import write_linear_version

from tlp_service.errors import BadVersion, InvalidBody, UnknownName
from tlp_service.settings import shipped_model
from tlp_service.versions.bounded_file import sha256_of
from tlp_service.versions.choice import choose_network
from tlp_service.versions.faults import cause_of
from tlp_service.versions.manifest import (
    MANIFEST,
    Network,
    read_manifest,
    version_name,
    write_version,
)
from tlp_service.versions.onnx_file import check_complete
from tlp_service.versions.registry import Registry


@pytest.fixture
def folder(tmp_path):
    return write_linear_version(tmp_path)


def rewrite(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite_scale(folder, scale, renamed=False):
    networks = json.loads((folder / MANIFEST).read_text())["networks"]
    networks[0]["score_map"]["scale"] = scale
    rewrite(folder, networks=networks)
    if renamed:
        rewrite(folder, version=version_name("published", msgspec.convert(networks, list[Network])))


def test_a_version_is_read_as_it_was_written(folder):
    manifest = read_manifest(folder)
    assert manifest.version == folder.name
    assert re.fullmatch(r"published-[0-9a-f]{12}", manifest.version)
    assert manifest.network("gpu").platforms == ["k80", "v100"]


def test_the_same_networks_have_the_same_name_and_others_another(tmp_path):
    names = {write_linear_version(tmp_path / str(n), factor).name for n, factor in enumerate((1.0, 1.0, 2.0))}
    assert len(names) == 2


def test_a_version_is_immutable(folder):
    manifest = read_manifest(folder)
    write_version(
        folder.parent, manifest, {n.file: folder / n.file for n in manifest.networks}
    )  # the same: fine
    changed = json.loads((folder / MANIFEST).read_text())
    changed["networks"][0]["platforms"] = ["other"]
    (folder / MANIFEST).write_text(json.dumps(changed))
    with pytest.raises(BadVersion, match="immutable"):
        write_version(folder.parent, manifest, {n.file: folder / n.file for n in manifest.networks})


def test_writing_leaves_nothing_aside(folder):
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / MANIFEST).unlink(), "manifest.json is missing"),
        (lambda f: (f / MANIFEST).write_text(""), "not JSON"),
        (lambda f: (f / MANIFEST).write_text("[" * 100_000), "not JSON that can be read"),
        (lambda f: (f / MANIFEST).write_bytes(b'{"schema": "\xff"}'), "not JSON that can be read"),
        (lambda f: (f / MANIFEST).write_text("[]"), "manifest schema None, this server reads 1"),
        (lambda f: rewrite(f, schema=2), "manifest schema 2, this server reads 1"),
        (lambda f: rewrite(f, networks=[]), "no networks"),
        (lambda f: rewrite(f, version="published-000000000000"), "its networks make it 'published-"),
        (lambda f: rewrite_scale(f, 2.0), "its networks make it 'published-"),
        (lambda f: rewrite_scale(f, -1.0, renamed=True), "the scale of a score map is positive, not -1.0"),
        (lambda f: rewrite(f, networks=5), "Expected `array`"),
        (lambda f: rewrite(f, spare=5), "unknown field `spare`"),
        (lambda f: (f / "cpu.onnx").unlink(), "'cpu.onnx' is missing"),
        (lambda f: (f / "cpu.onnx").write_bytes(b""), "sha256 differs"),
        (lambda f: (f / "cpu.onnx").write_bytes((f / "cpu.onnx").read_bytes() + b"x"), "sha256 differs"),
    ],
)
def test_a_damaged_version_is_refused_with_its_reason(folder, damage, message):
    damage(folder)
    with pytest.raises(BadVersion, match=re.escape(message)):
        read_manifest(folder)


@pytest.mark.parametrize(
    "name", ["../scratch/cpu.onnx", "/etc/passwd", "a/b", "..", ".", "", ".hidden", MANIFEST]
)
def test_a_manifest_cannot_name_a_file_outside_its_folder(folder, name):
    document = json.loads((folder / MANIFEST).read_text())
    document["networks"][0]["file"] = name
    rewrite(folder, networks=document["networks"])
    with pytest.raises(BadVersion, match="expected the name of a file beside the manifest"):
        read_manifest(folder)


def test_a_version_cannot_be_named_so_that_it_lands_outside_of_the_registry(folder, tmp_path):
    manifest = read_manifest(folder)
    name = version_name("../outside", manifest.networks)
    rewrite(folder, model="../outside", version=name)
    registry = Registry(tmp_path / "registry")
    with pytest.raises(BadVersion, match="model: expected letters"):
        registry.publish(folder)
    assert not list(tmp_path.glob("outside*"))


def test_a_network_that_is_too_large_is_refused_before_it_is_read(folder, monkeypatch):
    monkeypatch.setattr("tlp_service.versions.manifest.sha256_of", lambda path: pytest.fail("it was read"))
    with (folder / "cpu.onnx").open("r+b") as file:
        file.truncate(3 << 30)  # sparse
    with pytest.raises(BadVersion, match=f"expected at most {512 << 20} bytes, got {3 << 30}"):
        read_manifest(folder)


def test_a_manifest_that_is_too_large_is_refused_before_it_is_read(folder):
    with (folder / MANIFEST).open("r+b") as file:
        file.truncate(3 << 30)
    with pytest.raises(BadVersion, match=f"expected at most {32 << 20} bytes, got {3 << 30}"):
        read_manifest(folder)


def with_external_weights(path, place):
    """Move the weights of a network into another file; `place` is where the ONNX file has the tensor."""
    model = onnx.load(path)
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "weights")
    onnx.external_data_helper.set_external_data(weights, "weights.bin")
    if place == "initializer":
        (path.parent / "weights.bin").write_bytes(weights.raw_data)
        weights.ClearField("raw_data")
    else:
        constant = onnx.helper.make_node("Constant", [], ["spare"], value=weights)
        weights.ClearField("external_data")
        weights.ClearField("data_location")
        if place == "subgraph":
            body = onnx.helper.make_graph([constant], "body", [], [])
            constant = onnx.helper.make_node(
                "If", ["condition"], ["spare"], then_branch=body, else_branch=body
            )
        model.graph.node.append(constant)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("place", ["initializer", "attribute", "subgraph"])
def test_a_version_whose_weights_lie_in_another_file_is_refused(folder, place):
    file = folder / "cpu.onnx"
    with_external_weights(file, place)
    document = json.loads((folder / MANIFEST).read_text())
    document["networks"][0]["sha256"] = sha256_of(file)
    networks = msgspec.convert(document["networks"], list[Network])
    rewrite(folder, networks=document["networks"], version=version_name("published", networks))
    with pytest.raises(BadVersion, match="one is external data, which no digest covers"):
        read_manifest(folder)


@pytest.mark.parametrize("model", ["loopnest", "published"])
def test_the_check_of_external_data_accepts_whole_networks_and_refuses_cut_ones(model):
    for file in shipped_model(model).glob("*.onnx"):
        content = file.read_bytes()
        check_complete(io.BytesIO(content), "whole")
        for end in (1, 100, len(content) // 2, len(content) - 1):
            with pytest.raises(BadVersion, match="expected an ONNX file"):
                check_complete(io.BytesIO(content[:end]), "cut")


@pytest.mark.parametrize("model", ["loopnest", "published"])
def test_the_shipped_version_is_whole(model):
    manifest = read_manifest(shipped_model(model))
    assert {n.platform_kind for n in manifest.networks} == {"cpu", "gpu"}
    for network in manifest.networks:
        ours, random = network.metrics["test"], network.metrics["test_random"]
        assert ours["top1_mean"] > random["top1_mean"]


K80_TARGET = "cuda -keys=cuda,gpu -max_num_threads=1024 -thread_warp_size=32"


@pytest.mark.parametrize(
    ("platform", "target", "kind"),
    [
        ("k80", K80_TARGET, "gpu"),
        ("v100", K80_TARGET, "gpu"),
        ("epyc", "llvm", "cpu"),
        ("cpu", "llvm", "cpu"),
        (None, "llvm -mcpu=core-avx2", "cpu"),
        (None, K80_TARGET, "gpu"),
        (None, "hexagon -model=epyc", "cpu"),
        ("epyc", "hexagon", "cpu"),
    ],
)
def test_the_stated_platform_decides_and_then_the_target(folder, platform, target, kind):
    assert choose_network(read_manifest(folder), platform, target).network.platform_kind == kind


@pytest.mark.parametrize(
    ("platform", "target", "fault", "message"),
    [
        ("t4", K80_TARGET, UnknownName, "does not know 't4'; it knows cpu, epyc, gpu, k80, v100"),
        ("k80", "llvm", InvalidBody, "'k80' is a gpu, the target 'llvm' is a cpu"),
        (None, "hexagon", InvalidBody, "neither 'platform' nor the target 'hexagon' tells"),
    ],
)
def test_what_neither_decides_is_a_clear_error(folder, platform, target, fault, message):
    with pytest.raises(fault, match=re.escape(message)):
        choose_network(read_manifest(folder), platform, target)


def test_a_platform_of_both_kinds_is_told_by_the_target(tmp_path):
    manifest = read_manifest(write_linear_version(tmp_path, platforms={"cpu": ["box"], "gpu": ["box"]}))
    assert choose_network(manifest, "box", "llvm").network.platform_kind == "cpu"
    assert choose_network(manifest, "box", "cuda").network.platform_kind == "gpu"


def test_a_network_that_serves_one_platform_takes_the_place_of_the_general_one_there(folder):
    manifest = read_manifest(folder)
    general = manifest.network("gpu")
    own = msgspec.structs.replace(general, file="own.onnx", serves="t4", platforms=["k80", "v100", "t4"])
    of_all = msgspec.structs.replace(general, file="all.onnx", serves="gpu", platforms=["k80", "v100", "gpu"])
    manifest = msgspec.structs.replace(manifest, networks=[*manifest.networks, own, of_all])
    assert choose_network(manifest, "t4", K80_TARGET).network == own
    assert choose_network(manifest, None, f"{K80_TARGET} -model=t4").network == own
    assert choose_network(manifest, "k80", K80_TARGET).network == general
    assert choose_network(manifest, "gpu", K80_TARGET).network == of_all
    chosen = [
        choose_network(manifest, name, K80_TARGET).platform for name in ("t4", "k80", "gpu", "v100", None)
    ]
    assert chosen == ["t4", "k80", "gpu", "v100", None]
    assert choose_network(manifest, None, f"{K80_TARGET} -model=v100").platform == "v100"
    assert (manifest.network("gpu"), manifest.serving("gpu", "a100")) == (general, general)
    assert manifest.numbered("gpu") == ["k80", "v100", "t4"]
    assert version_name("loopnest", manifest.networks) != version_name("loopnest", manifest.networks[:-1])
    with pytest.raises(InvalidBody, match="'t4' is a gpu"):
        choose_network(manifest, "t4", "llvm")


@pytest.mark.parametrize("name", ["gpu", "cpu", "unknown", "generic", "skylake-avx512"])
def test_what_was_measured_under_a_name_that_is_no_device_scores_no_unnamed_hardware(folder, name):
    """Kind of fault: a client chooses a name that others did not mean.

    A GPU may be measured under the name of a CPU, too.
    """
    manifest = read_manifest(folder)
    of_kind = {kind: manifest.network(kind) for kind in ("cpu", "gpu")}
    learned = [
        msgspec.structs.replace(of_kind[kind], file=f"{kind}-own.onnx", serves=name, platforms=[name])
        for kind in ("cpu", "gpu")
        if name != "skylake-avx512" or kind == "gpu"
    ]
    manifest = msgspec.structs.replace(manifest, networks=[*manifest.networks, *learned])
    for target in ("llvm", f"llvm -keys=cpu -mcpu={name}", f"llvm -model={name}"):
        assert choose_network(manifest, None, target).network == of_kind["cpu"]
    if name != "skylake-avx512":
        for target in (K80_TARGET, f"{K80_TARGET} -model={name}", f"cuda -arch={name}"):
            assert choose_network(manifest, None, target).network == of_kind["gpu"]
        kind = name if name in ("cpu", "gpu") else "gpu"
        assert choose_network(manifest, name, "llvm" if kind == "cpu" else K80_TARGET).network.serves == name


def test_a_kind_without_a_network_is_unknown(tmp_path):
    folder = write_linear_version(tmp_path, platforms={"cpu": ["epyc"]})
    with pytest.raises(UnknownName, match="no network for gpu targets") as unknown:
        choose_network(read_manifest(folder), None, "cuda")
    assert unknown.value.code == "unknown_platform"


@pytest.mark.parametrize(
    ("model", "file"), [("loopnest", "MODEL_CARD.md"), ("published", "PUBLISHED_CARD.md")]
)
def test_the_card_tells_the_figures_of_the_shipped_version(model, file):
    folder = shipped_model(model)
    manifest = read_manifest(folder)
    card = (folder.parent / file).read_text()
    assert manifest.version in card
    for network in manifest.networks:
        for name, part in (("the model", "test"), ("random scores", "test_random")):
            figures = network.metrics[part]
            shown = ("top1_pooled", "top1_mean", "top5_pooled", "top5_mean", "pair_accuracy")
            row = f"| {network.platform_kind}, {name} | {figures['tasks']} | "
            assert row + " | ".join(f"{figures[f]:.3f}" for f in shown) + " |" in card


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PermissionError(13, "Permission denied", "/srv/inner"), "Permission denied"),
        (OSError(errno.EIO, "ftp://user:secret@10.0.0.7 failed"), "Input/output error"),
        (PermissionError("s3://inner/models: Forbidden"), "permission denied"),
        (FileNotFoundError("s3://inner"), "a file or folder is missing"),
        (TimeoutError("10.0.0.7"), "it does not answer"),
        (ConnectionRefusedError("10.0.0.7"), "it cannot be connected to"),
        (OSError("s3://inner: ClientError: 10.0.0.7"), "the log of this server tells why"),
    ],
)
def test_the_cause_of_a_fault_of_the_registry_names_no_place(error, cause):
    """Kind of fault: inner addresses in answers."""
    assert cause_of(error) == cause
