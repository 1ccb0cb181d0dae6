"""Measures the gain of continuous training on an unseen platform, and its robustness against poisoned records.

``curve``   The serving version is trained without the platform. Its records arrive in random order, and after 1, 5, 20
            and 100 % of them the trainer makes a step. After each step, the serving version ranks tasks without any
            record in the store. It is compared with the first serving version (frozen) and with one that was trained
            on all records. The tasks of all other platforms are ranked, too.
``poison``  The same, but from the second step on, a fifth of the records have costs shuffled inside their tasks, and
            all records from the fourth step on. Reports the version that each step published, whether it ranks clean
            records worse, and the prediction error that the service reports.

    .venv/bin/python benchmarks/learning.py curve STORE --targets x86-24c k80 --out FILE
"""

import argparse
import dataclasses
import logging
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
from provenance import write_figures

from tlp_client.tasks import canonical_workload_key, platform_kind
from tlp_service.evaluation.evaluate import evaluate
from tlp_service.families.lookup import preset_named
from tlp_service.learning.learn import learn
from tlp_service.measurements.stream import Entry
from tlp_service.quality.windows import Quality
from tlp_service.ranking.figures import summarise
from tlp_service.records.reader import part_of_store, stored_records
from tlp_service.records.split import part_of
from tlp_service.records.store import RecordStore
from tlp_service.scoring.scorer import Scorer
from tlp_service.training.train import TrainCommand, train
from tlp_service.versions.registry import Registry

SHARES = (0.01, 0.05, 0.2, 1.0)
#: Shares of the records that have come in at each step, and of those that came in since the last one the share that is
#: poisoned.
POISON = ((0.3, 0.0), (0.4, 0.2), (0.5, 0.2), (0.6, 1.0), (0.7, 1.0))
RESAMPLES = 1000


class Farm:
    """A record store, a registry, and the records of a platform on their way in.

    Parameters
    ----------
    whole : RecordStore
        All records.
    target : str
        The platform that comes in.
    folder : Path
        For versions and the farm's own store.
    seed : int
        Of the order in which records come.
    """

    def __init__(self, whole, target, folder, seed):
        self.target = target
        self.store = RecordStore.create(folder / "records", whole.seed)
        self.registry = Registry(folder / "registry")
        rows = whole.read(target)
        is_learned = np.array(
            [
                part_of(canonical_workload_key(key), whole.seed) != "test"
                for key in rows["workload_key"].to_pylist()
            ]
        )
        self.chance = np.random.default_rng(seed)
        self._order = self.chance.permutation(np.flatnonzero(is_learned))
        self._rows, self._came = rows, 0
        self.kind = platform_kind(rows["target"][0].as_py())
        # Ranked are the tasks of the test part, of which nothing comes in.
        kinds = {p: platform_kind(whole.read(p, ["target"])["target"][0].as_py()) for p in whole.platforms}
        self.tested = [(p, r) for p, r in part_of_store(whole, "test") if kinds[p] == self.kind]

    def serve(self, version):
        """Publish a trained version and let it serve."""
        self.registry.activate(self.registry.publish(version), by="benchmark")

    def receive(self, share, poisoned=0.0):
        """Take in records until so many have come, some with costs shuffled inside their tasks; return them."""
        count = round(share * len(self._order))
        rows = self._rows.take(np.sort(self._order[self._came : count]))
        self._came = count
        rows = shuffled(rows, self.chance.random(len(rows)) < poisoned, self.chance)
        self.store.append([rows])
        return rows

    def figures(self, version=None):
        """Return platform -> figures of its tasks, by the version that serves or another one's folder."""
        if version is None:
            with self.registry.checkout(self.registry.journal().active) as folder:
                return evaluate(Scorer(folder, threads=2), self.tested).platforms
        return evaluate(Scorer(version, threads=2), self.tested).platforms

    def learn(self):
        """Make a step of learning and return what came of it."""
        started = time.monotonic()
        outcome = learn(self.store, self.registry, [self.target])
        print(f"  ({time.monotonic() - started:.0f} s) {outcome.reason}", flush=True)
        return outcome


def shuffled(rows, is_poisoned, chance):
    """Return rows of which some have their costs shuffled inside their tasks."""
    costs, order = rows["costs"].combine_chunks(), np.arange(len(rows))
    keys = np.array(rows["workload_key"].to_pylist())
    for key in np.unique(keys[is_poisoned]):
        own = np.flatnonzero(is_poisoned & (keys == key))
        order[own] = chance.permutation(own)
    place = rows.column_names.index("costs")
    # What a row is known by stays: to the store it is another record, as if the worker had measured so.
    return rows.set_column(place, rows.schema.field("costs"), costs.take(pa.array(order)))


def gain(before, after, figure):
    """Return how much better the same tasks are ranked, and its 95 % interval by bootstrap over tasks."""
    gains = np.array([figure(b) - figure(a) for a, b in zip(before, after, strict=True)])
    drawn = np.random.default_rng(0).integers(0, len(gains), (RESAMPLES, len(gains)))
    low, high = np.quantile(gains[drawn].mean(axis=1), [0.025, 0.975])
    return float(gains.mean()), float(low), float(high)


FIGURES = {"top-1": lambda t: t.best_s / t.top1_s, "pairs": lambda t: t.pair_accuracy}


def worse(before, after):
    """Return the platforms and figures that are worse beyond their interval."""
    return [
        f"{platform} {name}"
        for platform in before
        for name, figure in FIGURES.items()
        if gain(before[platform], after[platform], figure)[2] < 0
    ]


def shown(tasks):
    summary = summarise(tasks)
    top, pairs = summary["top1_mean"], summary["pair_accuracy"]
    return (
        f"top-1 {top.value:.3f} ({top.low:.2f}-{top.high:.2f}) pairs {pairs.value:.3f} "
        f"({pairs.low:.2f}-{pairs.high:.2f})"
    )


def trained(store, out, kind, without, seed):
    """Train a version as `tlp train` does, without some platforms, unless it is there already; return its folder."""
    if out.exists():
        return next(out.glob("loopnest-*"))
    preset = preset_named("loopnest")
    fit = dataclasses.replace(preset.settings, seed=seed)
    return train(TrainCommand((store.folder,), out, preset, fit, without=without, kinds=(kind,)))


def curve(store, target, seed, folder):
    """Return what each step of learning of a platform came to."""
    farm = Farm(store, target, folder, seed)
    farm.serve(trained(store, folder / "without", farm.kind, (target,), seed))
    frozen = farm.figures()
    of_all = folder.parent / f"everything-{farm.kind}-{seed}"  # the same for all targets of a kind
    everything = farm.figures(trained(store, of_all, farm.kind, (), seed))
    print(f"\n{target}, seed {seed}: {len(frozen[target])} unseen tasks")
    print(f"{'frozen':<12}{shown(frozen[target])}")
    found = {
        "frozen": figures_of(frozen[target]),
        "everything": figures_of(everything[target]),
        "steps": [],
    }
    for share in SHARES:
        farm.receive(share)
        outcome = farm.learn()
        now = farm.figures()
        others = {p: t for p, t in now.items() if p not in (target, "all")}
        changed = [p for p, tasks in others.items() if tasks != frozen[p]]
        print(
            f"{share:<12.0%}{shown(now[target])}  {closed(frozen, everything, now, target)}; "
            f"{'accepted' if outcome.is_accepted else 'rejected'}; other platforms changed: {len(changed)} of "
            f"{len(others)}, "
            f"worse: {worse({p: frozen[p] for p in others}, others) or 'none'}",
            flush=True,
        )
        found["steps"].append(
            {
                "share": share,
                "accepted": outcome.is_accepted,
                "figures": figures_of(now[target]),
                "others_changed": changed,
            }
        )
    print(f"{'everything':<12}{shown(everything[target])}", flush=True)
    return found


def closed(frozen, everything, now, target):
    """Return in words how much of the gap between frozen and everything is closed."""
    told = []
    for name, figure in FIGURES.items():
        low, high, here = (np.mean([figure(t) for t in f[target]]) for f in (frozen, everything, now))
        told.append(f"{name} {(here - low) / (high - low):.2f} of {high - low:+.3f}")
    return "gap closed: " + ", ".join(told)


def figures_of(tasks):
    return {name: float(np.mean([figure(t) for t in tasks])) for name, figure in FIGURES.items()}


def poison(store, target, seed, folder):
    """Return what each step with poisoned records came to."""
    farm = Farm(store, target, folder, seed)
    farm.serve(trained(store, folder / "without", farm.kind, (target,), seed))
    quality = Quality(scorers_of(farm.registry), lambda: farm.registry.journal().active)
    found = []
    before = farm.figures()
    served = {farm.registry.journal().active: before}
    print(f"\n{target}, seed {seed}\n{'first':<22}{shown(before[target])}")
    for share, poisoned in POISON:
        serving = farm.registry.journal().active
        rows = farm.receive(share, poisoned)
        observe(quality, rows, serving, found)
        told = quality.document(0.0)["platforms"].get(target, {}).get(serving, {})
        outcome = farm.learn()
        after = farm.figures()
        faults = worse(before, after) if outcome.is_accepted else []
        print(
            f"{share:>4.0%}, {poisoned:>4.0%} poisoned   {shown(after[target])}  "
            f"{'accepted' if outcome.is_accepted else 'rejected'}, "
            f"worse than before: {faults or 'none'}; pair accuracy that the service tells "
            f"{told.get('pair_accuracy') or float('nan'):.3f}, "
            f"drifting: {told.get('drifting')}",
            flush=True,
        )
        found.append({"share": share, "poisoned": poisoned, "accepted": outcome.is_accepted, "worse": faults})
        found[-1] |= {"figures": figures_of(after[target]), "told": told}
        before = served[farm.registry.journal().active] = after
    if len(served) > 1:
        former = farm.registry.rollback("benchmark").active
        print(
            f"rolled back to {former}: figures the same to the last bit: {farm.figures() == served[former]}"
        )
    return found


def scorers_of(registry):
    """Return a function from a version's name to its scorer."""
    loaded = {}

    def scorer_of(version):
        if version not in loaded:
            with registry.checkout(version) as folder:
                loaded[version] = Scorer(folder)
        return loaded[version]

    return scorer_of


def observe(quality, rows, version, batches):
    """Let the service see records as they come in from a worker that used a version."""
    with tempfile.TemporaryDirectory() as scratch:
        came = RecordStore.create(Path(scratch) / "records")
        came.append([rows])
        records = [
            (Entry(str(n), "", "worker", platform, version), record)
            for n, (platform, record) in enumerate(stored_records(came))
        ]
    times = np.arange(len(records)) * 1e-3 + 1e6 * len(batches)
    quality.take(records, times.tolist())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("curve", "poison"))
    parser.add_argument("store", type=Path, help="record store of all logs")
    parser.add_argument("--targets", nargs="+", default=["x86-24c", "k80"], help="platforms that come in")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, help="file that gets all figures")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    study = curve if arguments.study == "curve" else poison
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for target, seed in product(arguments.targets, arguments.seeds):
            name = f"{target}-{seed}"
            (folder := Path(scratch, name)).mkdir()
            found[name] = study(RecordStore(arguments.store), target, seed, folder)
    if arguments.out:
        write_figures(arguments.out, found)


if __name__ == "__main__":
    main()
