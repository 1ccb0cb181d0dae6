"""The cost model for Ansor: goes where ``auto_scheduler.XGBModel()`` goes. Needs a TVM with ``auto_scheduler``; tested with 0.19.

>>> model = TLPRemoteModel("http://cost-model:8000", platform="epyc-9004-2c")    # doctest: +SKIP
>>> policy = auto_scheduler.SketchPolicy(task, model)                            # doctest: +SKIP
>>> tuner.tune(options, search_policy=make_search_policies(tasks, model))        # doctest: +SKIP

``SketchPolicy`` tells its cost model of a round when the next one begins, so never of the last. `SendMeasured` among the
``measure_callbacks`` sends every round, the last one too; a record that goes both ways is kept once.
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
    """Ansor's own objects for `TuningClient`: search tasks, states, measure inputs and results."""

    dialect = Ansor.name

    def describe(self, task: auto_scheduler.SearchTask) -> Task:
        """Return the task of a search task."""
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

    Attributes
    ----------
    counts : Counts
        What the model did so far.
    outbox : Outbox
        Holds what the service has not acknowledged.

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
        """Model version of the latest scores, or of `load`; None before either."""
        return self.client.version

    def predict(self, task: auto_scheduler.SearchTask, states: Sequence[Any]) -> list[float]:
        """Return one score a state, in order: finite, higher is faster, 0 only for an invalid state.

        Parameters
        ----------
        task : SearchTask
            The task of all states.
        states : sequence of State
            Candidates; an empty one costs no request.
        """
        return self.client.predict(task, states)

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
        self.client.update(inputs, results)

    def finish_round(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Do what `update` does but for teaching the fallback; sent again by `update`, a record is kept once."""
        self.client.finish_round(inputs, results)

    def update_from_file(self, file_name: str, n_lines: int | None = None) -> None:
        """Send the records of a tuning log, as ``XGBModel.update_from_file`` trains on them."""
        inputs, results = auto_scheduler.RecordReader(file_name).read_lines(n_lines)
        self.update(list(inputs), list(results))

    def save(self, file_name: str) -> None:
        """Write which model and version score now; the model itself is the service's."""
        self.client.save(file_name)

    def load(self, file_name: str) -> None:
        """Score with the version that `save` wrote, until the next `update`; if it is gone, by the one that serves.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If `save` did not write it. A model that can't be loaded is never passed over.
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
