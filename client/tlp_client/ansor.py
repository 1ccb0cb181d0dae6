"""The cost model for Ansor: goes where ``auto_scheduler.XGBModel()`` goes. Needs a TVM with ``auto_scheduler``; tested with 0.19.

>>> model = TLPRemoteModel("http://cost-model:8000", platform="epyc-9004-2c")    # doctest: +SKIP
>>> policy = auto_scheduler.SketchPolicy(task, model)                            # doctest: +SKIP
>>> tuner.tune(options, search_policy=make_search_policies(tasks, model))        # doctest: +SKIP

``SketchPolicy`` tells its cost model of a round when the next one begins, so never of the last. `SendMeasured` among the
``measure_callbacks`` sends every round, the last one too; a record that goes both ways is kept once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import auto_scheduler
from tvm.auto_scheduler.cost_model.cost_model import PythonBasedModel
from tvm.auto_scheduler.measure import PythonBasedMeasureCallback

from tlp_client.connection import Connection, Round
from tlp_client.errors import BadAnswer, InvalidInput, Refused
from tlp_client.fallback import LocalFallback
from tlp_client.outbox import Outbox
from tlp_client.records import RecordParser, split_primitives
from tlp_client.score_cache import ScoreCache
from tlp_client.spool import Spool, find_folder
from tlp_client.states import serialize_states
from tlp_client.tasks import Task
from tlp_client.wire.fields import read_name
from tlp_client.wire.measurements import measurement_id

log = logging.getLogger(__name__)

#: Tasks whose rounds are remembered, far more than are tuned at a time; one that is forgotten begins another round.
_MAX_ROUNDS = 4096


@dataclass(slots=True)
class Counts:
    """What a model did so far.

    Parameters
    ----------
    predicts, candidates : int
        Predict calls that the service answered, and the candidates in them.
    cached : int
        Of these candidates, those whose scores were known already, or that stood twice in a call.
    fallbacks, fallback_candidates : int
        Predict calls that the service did not answer, and the candidates in them.
    invalid : int
        Candidates that the service called invalid; they got the lowest score.
    """

    predicts: int = 0
    candidates: int = 0
    cached: int = 0
    fallbacks: int = 0
    fallback_candidates: int = 0
    invalid: int = 0


class TLPRemoteModel(PythonBasedModel):  # type: ignore[misc]  # TVM is untyped
    """Scores candidates by the cost-model service and sends it what was measured.

    The search never stops because of the service: when there is no answer within the deadline, a local
    fallback scores (Ansor's own XGBoost model, taught with what this worker has measured, or chance) for the rest of the
    round; a warning says so once an outage. Rounds are kept apart by task, so one model may serve many searches at a time.

    Parameters
    ----------
    url : str
        Of the service, e.g. ``http://cost-model:8000``.
    platform : str or None
        Hardware that is tuned for, e.g. ``v100``. Needed where devices share a target string.
    worker : str or None
        Name under which this worker measures; host and process id by default.
    deadline_s : float
        Seconds that one predict may take.
    outbox_dir : str, path or None
        Folder in which measurements wait for the service, so that they outlive this process; "" for memory only. By default
        ``$TLP_OUTBOX_DIR``, or else ``tlp/outbox`` in the user's cache folder.
    connection, outbox : Connection, Outbox or None
        For tests.

    Raises
    ------
    InvalidRequest
        If platform or worker is no name that the wire format takes.
    """

    def __init__(
        self,
        url: str,
        platform: str | None = None,
        *,
        worker: str | None = None,
        deadline_s: float = 10.0,
        outbox_dir: str | os.PathLike[str] | None = None,
        connection: Connection | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        super().__init__()
        worker = read_name(worker, "worker") or _worker_name()
        self._connection = connection or Connection(
            url, platform=platform, deadline_s=deadline_s, client=worker
        )
        self.outbox = outbox or _open_outbox(self._connection, worker, outbox_dir)
        self.counts = Counts()
        self._fallback = LocalFallback()
        self._parser = RecordParser()
        self._scores = ScoreCache()
        self._unreported = 0  # cached candidates that the service has not heard of
        self._lock = threading.Lock()
        self._rounds: OrderedDict[str, Round] = OrderedDict()  # by workload key, the last used last
        self._next_version: str | None = None  # that rounds begin with, after `load`
        self._latest: tuple[str, str] | None = None
        self._has_warned = False

    @property
    def version(self) -> str | None:
        """Model version of the latest scores, or of `load`; None before either."""
        return self._latest[1] if self._latest else None

    def predict(self, task: auto_scheduler.SearchTask, states: Sequence[Any]) -> list[float]:
        """Return one score a state, in order: finite, higher is faster, 0 only for an invalid state.

        Parameters
        ----------
        task : SearchTask
            The task of all states.
        states : sequence of State
            Candidates; an empty one costs no request.
        """
        if len(states) == 0:
            return []
        with self._lock:
            round_ = self._rounds.get(task.workload_key)
            if round_ is None or round_.is_measured:
                round_ = self._rounds[task.workload_key] = Round(self._next_version)
            self._rounds.move_to_end(task.workload_key)
            if len(self._rounds) > _MAX_ROUNDS:
                self._rounds.popitem(last=False)
        if not round_.fell_back:
            try:
                scores = self._predict_remotely(task, states, round_)
            except Exception as error:  # noqa: BLE001  whatever happens here, the search goes on
                round_.fell_back = True
                self._warn(error)
            else:
                self._recover()
                return scores
        with self._lock:
            self.counts.fallbacks += 1
            self.counts.fallback_candidates += len(states)
        return self._fallback.predict(task, states)

    def predict_stages(
        self, task: auto_scheduler.SearchTask, states: Sequence[Any]
    ) -> npt.NDArray[np.float32]:
        """Return the scores in TVM's packed form, with no breakdown: each state has 0 stages."""
        return np.concatenate([self.predict(task, states), np.zeros(len(states))]).astype(np.float32)

    def update(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Send measured results to the service, in the background, and end the rounds of their tasks.

        The next predict of these tasks takes the version that serves then.

        Parameters
        ----------
        inputs, results : sequence of MeasureInput, MeasureResult
            What was measured, failed runs included.
        """
        if len(inputs) == 0:
            return
        self._fallback.learn(inputs, results)
        try:
            self.finish_round(inputs, results)
        except Exception:  # as in predict, the search goes on
            log.exception("%d measured records are not sent", len(inputs))

    def finish_round(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Do what `update` does but for teaching the fallback; sent again by `update`, a record is kept once."""
        letters: dict[str | None, list[tuple[str, str]]] = {}
        for measured, result in zip(inputs, results, strict=True):
            line = auto_scheduler.measure_record.dump_record_to_string(measured, result)
            try:
                record = self._parser.parse(line.strip())
            except InvalidInput as error:
                log.warning("a measured record is not sent: %s", error)
                continue
            round_ = self._rounds.get(record.task.workload_key)
            version = round_.version if round_ else None
            letter = (measurement_id(record, self._connection.platform), record.to_line())
            letters.setdefault(version, []).append(letter)
        for version, of_version in letters.items():
            self.outbox.put(of_version, version)
        with self._lock:
            self._next_version = None
            for measured in inputs:
                # It stays: TVM tells of a round in several parts, and all were chosen by its version.
                if (round_ := self._rounds.get(measured.task.workload_key)) is not None:
                    round_.is_measured = True

    def update_from_file(self, file_name: str, n_lines: int | None = None) -> None:
        """Send the records of a tuning log, as ``XGBModel.update_from_file`` trains on them."""
        inputs, results = auto_scheduler.RecordReader(file_name).read_lines(n_lines)
        self.update(list(inputs), list(results))

    def save(self, file_name: str) -> None:
        """Write which model and version score now; the model itself is the service's."""
        model, version = self._latest or (None, None)
        state = {"service": self._connection.url, "model": model, "version": version, **asdict(self.counts)}
        Path(file_name).write_text(json.dumps(state, indent=2) + "\n")

    def load(self, file_name: str) -> None:
        """Score with the version that `save` wrote, until the next `update`; if it is gone, by the one that serves.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If `save` did not write it. A model that can't be loaded is never passed over.
        """
        try:
            state = json.loads(Path(file_name).read_text())
            model, version = state["model"], state["version"]
            if not (isinstance(model, str) and isinstance(version, str)) and (model, version) != (None, None):
                raise TypeError("model and version are names")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{file_name} is no file of TLPRemoteModel.save: {error}") from None
        with self._lock:
            self._next_version = version
            self._latest = (model, version) if version is not None else None
            self._rounds.clear()

    def _predict_remotely(
        self, task: auto_scheduler.SearchTask, states: Sequence[Any], round_: Round
    ) -> list[float]:
        lines = serialize_states(task, states)
        distinct = dict.fromkeys(lines)
        # Only an answer tells which version serves this round, so its first call asks for all.
        version = round_.version if round_.is_answered else None
        scores = self._scores.find(version, distinct) if version is not None else {}
        asked = [line for line in distinct if line not in scores]
        cached = len(lines) - len(asked)
        with self._lock:
            self._unreported += cached
        if asked:
            self._ask(task, asked, round_, scores)
        if not any(scores.values()):
            raise BadAnswer("no candidate could be scored: the service calls all of them invalid")
        with self._lock:
            self.counts.predicts += 1
            self.counts.candidates += len(lines)
            self.counts.cached += cached
        return [scores[line] for line in lines]

    def _ask(
        self,
        task: auto_scheduler.SearchTask,
        lines: Sequence[str],
        round_: Round,
        scores: dict[str, float],
    ) -> None:
        """Add the scores of candidates to those that are known; 0 for one that is invalid."""
        primitives, candidates = split_primitives(lines)
        described = Task(task.workload_key, str(task.target))
        with self._lock:
            cached, self._unreported = self._unreported, 0
        try:
            answer = self._connection.predict(described, primitives, candidates, round_, cached)
        except BaseException:
            with self._lock:
                self._unreported += cached
            raise
        valued = [0.0 if score is None else score for score in answer.scores]
        self._scores.add(answer.version, lines, valued)
        scores.update(zip(lines, valued, strict=True))
        if answer.errors:
            log.info("invalid candidates: %s", next(iter(answer.errors.values())))
        with self._lock:
            self._latest = (answer.model, answer.version)
            self.counts.invalid += answer.scores.count(None)

    def _warn(self, error: Exception) -> None:
        with self._lock:
            is_first, self._has_warned = not self._has_warned, True
        if is_first:
            remedy = f"; {error.remedy}" if isinstance(error, Refused) else ""
            log.warning(
                "the cost-model service does not score, falling back to local scores: %s%s", error, remedy
            )

    def _recover(self) -> None:
        with self._lock:
            had_warned, self._has_warned = self._has_warned, False
        if had_warned:
            log.info("the cost-model service scores again")


class SendMeasured(PythonBasedMeasureCallback):  # type: ignore[misc]  # TVM is untyped
    """A measure callback that sends each round's results to the service, and ends the round.

    Parameters
    ----------
    model : TLPRemoteModel
        The cost model of the search.
    """

    def __init__(self, model: TLPRemoteModel) -> None:
        super().__init__()
        self._model = model

    def callback(self, policy: Any, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Send what was measured; called by TVM after each round."""
        self._model.finish_round(inputs, results)


def make_search_policies(
    tasks: Sequence[auto_scheduler.SearchTask],
    model: TLPRemoteModel,
    params: dict[str, Any] | None = None,
    verbose: int = 1,
    load_log_file: str | None = None,
) -> list[auto_scheduler.SketchPolicy]:
    """Return one sketch policy a task, for ``TaskScheduler.tune(options, search_policy=…)``.

    The counterpart of ``search_policy="sketch.xgb"``, which names only models that TVM itself holds.

    Parameters
    ----------
    tasks : sequence of SearchTask
        The tasks of the scheduler, in its order.
    model : TLPRemoteModel
        Shared by all.
    params, verbose : dict, int
        As of ``SketchPolicy``.
    load_log_file : str or None
        Log from which the policies restore what was measured already.
    """
    callbacks = [auto_scheduler.PreloadMeasuredStates(load_log_file)] if load_log_file else None
    return [
        auto_scheduler.SketchPolicy(
            task, model, params=params, verbose=verbose, init_search_callbacks=callbacks
        )
        for task in tasks
    ]


def _open_outbox(connection: Connection, worker: str, named: str | os.PathLike[str] | None) -> Outbox:
    folder = find_folder(named)
    spool = Spool(folder, connection.url, connection.platform) if folder is not None else None
    return Outbox(connection, worker, spool=spool)


def _worker_name() -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-") or "worker"
    return f"{host[:100]}-{os.getpid()}"
