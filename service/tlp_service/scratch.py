"""Temporary folders for the caches of libraries, so that they leave nothing in the home folder or in /tmp."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def use_scratch_folder(variable: str) -> None:
    """Set an environment variable to a new temporary folder, which is removed when this process ends.

    Call it before importing the library that reads the variable. A value that the user has set is kept.

    Parameters
    ----------
    variable : str
        Name of the variable, such as ``MPLCONFIGDIR``.
    """
    if variable not in os.environ:
        os.environ[variable] = tempfile.mkdtemp(prefix="tlp-scratch-")
        atexit.register(shutil.rmtree, os.environ[variable], ignore_errors=True)
