"""Folders that a library wants for its caches: temporary ones, so that nothing is left in the home folder or in /tmp."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def use_scratch_folder(variable: str) -> None:
    """Let an environment variable name an empty folder, which is removed when this process ends.

    Call it before the import of the library that reads the variable. A folder that the user named stays.

    Parameters
    ----------
    variable : str
        Name of the variable, such as ``MPLCONFIGDIR``.
    """
    if variable not in os.environ:
        os.environ[variable] = tempfile.mkdtemp(prefix="tlp-scratch-")
        atexit.register(shutil.rmtree, os.environ[variable], ignore_errors=True)
