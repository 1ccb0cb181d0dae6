"""What a step of learning came to, and whether that is about the platform or about what was around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What became of a platform, see `Outcome`.
State = Literal["judged", "refused", "failed", "unreadable", "put off"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step of learning came to.

    Parameters
    ----------
    version : str or None
        The version that was made; None if none was.
    is_accepted : bool
        Whether it serves now.
    reason : str
        Why, or why not.
    state : str
        ``judged``: the gate's verdict is in the registry. ``refused``: the platform's records cannot be learned from, which was seen before
        anything was trained. ``failed``: training ended with a fault of its own. ``unreadable``: its records could not be read this time.
        ``put off``: for a reason that has nothing to do with the platform, so that the same is to be tried again.
    """

    version: str | None
    is_accepted: bool
    reason: str
    state: State = "judged"

    @property
    def is_verdict(self) -> bool:
        """Whether it is about the platform, and final until more was measured on it."""
        return self.state in ("judged", "refused", "failed")

    @property
    def is_trained(self) -> bool:
        """Whether it took the time of a training."""
        return self.state in ("judged", "failed")


class Refusal(Exception):
    """Why a platform is not learned, and what that is, see `Outcome`."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state: State = state
