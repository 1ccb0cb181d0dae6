"""Versions that are swapped under load.

Failed requests, answers that mix versions, p99 beside that without swaps, and memory.

Three versions of the shipped networks, whose score maps differ, serve in turn. The server keeps one beside the serving
one, so each swap loads a version from disk. Every answer must equal the scores that the version it names gives by
itself.

    .venv/bin/python benchmarks/swap.py --swaps 500 --out FILE
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from load import Bodies, memory, milliseconds, quantile
from provenance import write_figures
from serving import start

from tlp_client.wire.predict import read_predict
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import shipped_model
from tlp_service.versions.manifest import read_manifest, version_name, write_version
from tlp_service.versions.registry import Registry

LOG = Path(__file__).resolve().parents[1] / "tests" / "data" / "measured.json"

#: Largest difference of a score from that of the version by itself, which goes by other batches.
TOLERANCE = 1e-4


def make_versions(folder, count):
    """Return folders of versions with the shipped networks and other score maps."""
    source = shipped_model()
    manifest = read_manifest(source)
    files = {name: source / name for network in manifest.networks for name in network.files}
    made = []
    for number in range(count):
        networks = []
        for network in manifest.networks:
            changed = msgspec.structs.replace(
                network.score_map, scale=network.score_map.scale * (1 + number / 2)
            )
            networks.append(msgspec.structs.replace(network, score_map=changed))
        name = version_name(manifest.model, networks)
        made.append(
            write_version(folder, msgspec.structs.replace(manifest, version=name, networks=networks), files)
        )
    return made


class Workers:
    """Callers that ask back to back, each the same body, and look at each answer."""

    def __init__(self, server, count, body, expected):
        self._server = server
        self._body = body
        self._expected = expected  # version -> scores
        self._is_over = threading.Event()
        self.seconds, self.failed, self.mixed = [], [], []
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number):
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=120)
        headers = {"Content-Type": "application/json", "tlp-client": f"worker-{number}"}
        pinned = None
        while not self._is_over.is_set():
            body = self._body if pinned is None else self._body[:-1] + f',"version":"{pinned}"}}'.encode()
            started = time.perf_counter()
            connection.request("POST", "/v1/predict", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            self.seconds.append(time.perf_counter() - started)
            document = msgspec.json.decode(text)
            if answer.status == 409 and pinned is not None:
                pinned = None  # its round is over
                continue
            if answer.status != 200:
                self.failed.append(document)
                continue
            scores = np.array(document["scores"])
            expected = self._expected[document["version"]]
            if pinned not in (None, document["version"]) or np.abs(scores - expected).max() > TOLERANCE:
                self.mixed.append(document["version"])
            # Half of the workers stay with a version for a call, as a search round does.
            pinned = document["version"] if number % 2 and pinned is None else None
        connection.close()

    def figures(self):
        return {
            "calls": len(self.seconds),
            "failed": len(self.failed),
            "mixed": len(self.mixed),
            **milliseconds(self.seconds),
        }


def swap(server, registry, names, swaps, pause):
    """Activate versions in turn, each when the one before serves; return seconds until each did."""
    took = []
    for number in range(1, swaps + 1):
        name = names[number % len(names)]
        started = time.perf_counter()
        registry.activate(name, "benchmark")
        while json.loads(server.get("/health/ready")[1])["version"] != name:
            time.sleep(0.02)
        took.append(time.perf_counter() - started)
        time.sleep(pause)
    return took


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--swaps", type=int, default=500)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=256)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between swaps")
    parser.add_argument("--seconds", type=float, default=30, help="of load before without swaps")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    body = Bodies(args.log).of(args.candidates)
    request = read_predict(json.loads(body))
    with tempfile.TemporaryDirectory() as scratch:
        folders = make_versions(Path(scratch, "registry"), 3)
        names = [folder.name for folder in folders]
        expected = {folder.name: Scorer(folder).score(request).scores for folder in folders}
        registry = Registry(Path(scratch, "registry"))
        registry.activate(names[0], "benchmark")
        settings = {"registry": Path(scratch, "registry"), "kept_versions": 1, "registry_poll_s": 0.1}
        with start(Path(scratch, "stream"), **settings) as server:
            with Workers(server, args.workers, body, expected):
                time.sleep(args.seconds / 4)  # until all that grows by itself has grown
            with Workers(server, args.workers, body, expected) as without:
                time.sleep(args.seconds)
            before = memory(server)["rss_mb"]
            with Workers(server, args.workers, body, expected) as during:
                took = swap(server, registry, names, args.swaps, args.pause)
            after = memory(server)["rss_mb"]
            counted = server.metric("tlp_version_swaps_total")
    report = {
        "without": without.figures(),
        "during": during.figures(),
        "swaps": counted,
        "until_it_serves": milliseconds(took),
        "p99_ratio": round(quantile(during.seconds, 0.99) / quantile(without.seconds, 0.99), 2),
        "rss_mb": [before, after],
        "rss_growth_mb": after - before,
    }
    for name, figure in report.items():
        print(f"{name}: {json.dumps(figure)}")
    for document in during.failed[:3]:
        print(document)
    if args.out:
        write_figures(args.out, report)


if __name__ == "__main__":
    main()
