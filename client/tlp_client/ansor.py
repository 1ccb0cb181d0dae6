"""The cost model for Ansor, a drop-in replacement for ``auto_scheduler.XGBModel()``.

It needs a TVM with ``auto_scheduler``; tested with 0.19.

>>> model = TLPRemoteModel("http://cost-model:8000", platform="epyc-9004-2c")    # doctest: +SKIP
>>> policy = auto_scheduler.SketchPolicy(task, model)                            # doctest: +SKIP
>>> tuner.tune(options, search_policy=make_search_policies(tasks, model))        # doctest: +SKIP

``SketchPolicy`` reports a round to its cost model when the next round begins, so it never reports the last
one. Add `SendMeasured` to the ``measure_callbacks`` to send every round, including the last. The service
deduplicates records that arrive both ways.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import auto_scheduler
from tvm.auto_scheduler.cost_model.cost_model import PythonBasedModel
from tvm.auto_scheduler.measure import PythonBasedMeasureCallback

from tlp_client.connection import Connection
from tlp_client.dialects.ansor import Ansor
from tlp_client.fallback import LocalFallback, LocalModel
from tlp_client.outbox import Outbox
from tlp_client.states import serialize_states
from tlp_client.tasks import Task
from tlp_client.tuning_client import Counts, TuningClient

__all__ = ["Counts", "SendMeasured", "TLPRemoteModel", "make_search_policies", "make_xgb_model"]


class AnsorTuner:
    """Translates Ansor's search tasks, states, measure inputs and results for `TuningClient`."""

    dialect = Ansor.name

    def describe(self, task: auto_scheduler.SearchTask) -> Task:
        """Return the `Task` that describes a search task."""
        return Task(task.workload_key, str(task.target))

    def candidates(self, task: auto_scheduler.SearchTask, candidates: Sequence[Any]) -> list[str]:
        """Return the record line of each state."""
        return serialize_states(task, candidates)

    def line(self, measured: auto_scheduler.MeasureInput, result: auto_scheduler.MeasureResult) -> str:
        """Return the record line of a measurement."""
        line: str = auto_scheduler.measure_record.dump_record_to_string(measured, result)
        return line

    def workload_key(self, measured: auto_scheduler.MeasureInput) -> str:
        """Return the workload key of a measurement."""
        key: str = measured.task.workload_key
        return key


class TLPRemoteModel(PythonBasedModel):  # type: ignore[misc]  # TVM is untyped
    """Scores candidates through the cost-model service and sends it the measurements.

    The search never stops because of the service. If no answer arrives within the deadline, a local fallback
    scores for the rest of the round: Ansor's own XGBoost model, trained on this worker's measurements, or
    random scores. Each outage is logged once, as a warning. Rounds are tracked per task, so searches may
    share one model.

    Parameters
    ----------
    url : str
        URL of the service, e.g. ``http://cost-model:8000``.
    platform : str or None
        Name of the target hardware, e.g. ``v100``. Needed if several devices share a target string.
    worker : str or None
        Name of this worker in its measurements; host name and process id by default.
    deadline_s : float
        Maximum seconds per predict call.
    outbox_dir : str, path or None
        Folder that keeps unsent measurements, so that they survive this process; "" keeps them in memory
        only. The default is ``$TLP_OUTBOX_DIR``, or ``tlp/outbox`` in the user's cache folder if that is not
        set.
    connection, outbox : Connection, Outbox or None
        Replacements for the parts that the model would create; for tests.

    Attributes
    ----------
    counts : Counts
        Counters of predict calls and candidates since the model was created.
    outbox : Outbox
        Measurements that the service has not acknowledged yet.

    Raises
    ------
    InvalidRequest
        If platform or worker is not a valid name of the wire format.
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
        self.client = TuningClient(
            AnsorTuner(),
            LocalFallback(make_xgb_model),
            url,
            platform,
            worker=worker,
            deadline_s=deadline_s,
            outbox_dir=outbox_dir,
            connection=connection,
            outbox=outbox,
        )
        self.counts = self.client.counts
        self.outbox = self.client.outbox

    @property
    def version(self) -> str | None:
        """Model version of the latest scores or the last `load`, whichever is later; None before both."""
        return self.client.version

    def predict(self, task: auto_scheduler.SearchTask, states: Sequence[Any]) -> list[float]:
        """Return one finite score per state, in order; higher is faster.

        Only an invalid state scores 0.

        Parameters
        ----------
        task : SearchTask
            The task of all states.
        states : sequence of State
            Candidates to score. An empty sequence sends no request.
        """
        return self.client.predict(task, states)

    def predict_stages(
        self, task: auto_scheduler.SearchTask, states: Sequence[Any]
    ) -> npt.NDArray[np.float32]:
        """Return the scores in TVM's packed form, with 0 stages per state: there are no scores by stage."""
        return np.concatenate([self.predict(task, states), np.zeros(len(states))]).astype(np.float32)

    def update(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Send measured results to the service in the background, and end the rounds of their tasks.

        The next predict call of these tasks uses the version that is active at that time.

        Parameters
        ----------
        inputs, results : sequence of MeasureInput, MeasureResult
            Measured candidates and their results, including failed runs.
        """
        self.client.update(inputs, results)

    def finish_round(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Do the same as `update`, but without training the fallback.

        If `update` sends the same records again, the service keeps them once.
        """
        self.client.finish_round(inputs, results)

    def update_from_file(self, file_name: str, n_lines: int | None = None) -> None:
        """Send the records of a tuning log, as ``XGBModel.update_from_file`` trains on them."""
        inputs, results = auto_scheduler.RecordReader(file_name).read_lines(n_lines)
        self.update(list(inputs), list(results))

    def save(self, file_name: str) -> None:
        """Write the names of the current model and version; the model itself stays at the service."""
        self.client.save(file_name)

    def load(self, file_name: str) -> None:
        """Score with the version that `save` wrote, until the next `update`.

        If the service no longer has that version, its active version scores.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If `save` did not write the file. It is never ignored: the caller named this version on purpose.
        """
        self.client.load(file_name)


def make_xgb_model() -> LocalModel:
    """Return Ansor's own XGBoost model.

    Raises
    ------
    ImportError
        If xgboost does not import.
    """
    from tvm.auto_scheduler.cost_model import XGBModel

    model: LocalModel = XGBModel(verbose_eval=0, num_warmup_sample=0)
    return model


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
        """Send the measurements of a round; TVM calls this after each round."""
        self._model.finish_round(inputs, results)


def make_search_policies(
    tasks: Sequence[auto_scheduler.SearchTask],
    model: TLPRemoteModel,
    params: dict[str, Any] | None = None,
    verbose: int = 1,
    load_log_file: str | None = None,
) -> list[auto_scheduler.SketchPolicy]:
    """Return one sketch policy per task, for ``TaskScheduler.tune(options, search_policy=…)``.

    Use it instead of ``search_policy="sketch.xgb"``, which can only name the cost models built into TVM.

    Parameters
    ----------
    tasks : sequence of SearchTask
        The tasks of the scheduler, in its order.
    model : TLPRemoteModel
        Cost model that all policies share.
    params, verbose : dict, int
        Passed to ``SketchPolicy``.
    load_log_file : str or None
        Tuning log from which the policies restore earlier measurements.
    """
    callbacks = [auto_scheduler.PreloadMeasuredStates(load_log_file)] if load_log_file else None
    return [
        auto_scheduler.SketchPolicy(
            task, model, params=params, verbose=verbose, init_search_callbacks=callbacks
        )
        for task in tasks
    ]
