"""The outcome of a step of learning, and whether it concerns the platform or only the circumstances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: State of a platform after a step, see `Outcome`.
State = Literal["judged", "refused", "failed", "unreadable", "put off"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step of learning.

    Parameters
    ----------
    version : str or None
        The version that was published, or None.
    is_accepted : bool
        Whether that version serves now.
    reason : str
        The reason for the outcome.
    state : str
        ``judged``: the gate's verdict is in the registry. ``refused``: the records were found unsuitable before
        training. ``failed``: training raised an exception. ``unreadable``: the records could not be read this time.
        ``put off``: a reason outside the platform, so the same step should be tried again.
    """

    version: str | None
    is_accepted: bool
    reason: str
    state: State = "judged"

    @property
    def is_verdict(self) -> bool:
        """Whether it concerns the platform, and is final until the platform has more records."""
        return self.state in ("judged", "refused", "failed")

    @property
    def is_trained(self) -> bool:
        """Whether a network was trained, which takes most of the time."""
        return self.state in ("judged", "failed")


class Refusal(Exception):
    """Ends the step of a platform early, with the state and reason of its `Outcome`."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state: State = state
