"""How benchmarks write their figures: one JSON file with the command, date, version, commit and machine beside them.

``benchmarks/results_page.py`` makes `docs/results.md` of the files in ``benchmarks/results``. Needs only the standard
library, since benchmarks run in both environments.
"""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_figures(path, figures):
    """Write the figures of this run to a JSON file.

    Parameters
    ----------
    path : Path
        The file; its folder is made if need be.
    figures : dict
        What the benchmark measured, as JSON values.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**AT_START, "figures": figures}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def provenance():
    """Return what tells where figures come from: command, date, version, commit, machine."""
    return {
        "command": command(sys.argv),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "version": version("tlp-service"),
        "commit": commit(),
        "machine": machine(),
    }


def command(argv):
    """Return the command line of this process, relative to the repository, without folders of this machine."""
    program = Path(argv[0]).resolve()
    program = program.parent if program.name == "__main__.py" else program
    shown = program.relative_to(ROOT) if program.is_relative_to(ROOT) else program.name
    return shlex.join([str(shown), *map(_without_folders, argv[1:])])


def _without_folders(argument):
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def commit():
    """Return the commit of the working tree, with ``+`` if tracked files differ from it.

    Outside of a repository it returns None.
    """
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def machine():
    """Return the CPUs that this process may use, the release of Python, and whether other work came first, in words."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = f"{usable} CPUs of {_cpu_model()}, {platform.system()}, Python {platform.python_version()}"
    return f"{words}, at idle priority beside other work" if _is_idle_priority() else words


def _is_idle_priority():
    # Figures of such a run are those of a busy machine.
    return hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE


def _cpu_model():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, 'unknown model')} ({platform.machine()})"


#: Of the start of this process, since the working tree may change while a benchmark runs.
AT_START = provenance()
