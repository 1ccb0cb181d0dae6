"""Files of earlier releases, and their clients; see the README in tests/data/forms."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from serving import HANG_S

FOLDER = Path(__file__).parent / "data" / "forms"

#: Service and platform of the outbox files.
OUTBOX_URL, PLATFORM = "http://cost-model:8000", "epyc"

_BEGIN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tlp_client
assert tlp_client.__file__.startswith(sys.argv[1]), tlp_client.__file__
arguments = json.loads(sys.stdin.read())
"""


@dataclass(frozen=True)
class Release:
    """The files of one release."""

    folder: Path

    def json(self, name):
        return json.loads(self.bytes(name))

    def bytes(self, name):
        return (self.folder / name).read_bytes()

    def run_client(self, program, **arguments):
        """Run a program with the release's client in a process of its own, and return its JSON output.

        The program finds its keyword arguments in the dict ``arguments``.
        """
        (wheel,) = self.folder.glob("*.whl")
        done = subprocess.run(
            [sys.executable, "-c", _BEGIN + program, str(wheel)],
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def version(self):
        """The folder of the model version that served."""
        return self.folder / "registry" / self.json("registry/active.json")["active"]

    @property
    def versions(self):
        """The folders of all model versions, the one that served first."""
        folders = sorted(path for path in (self.folder / "registry").iterdir() if path.is_dir())
        return sorted(folders, key=lambda folder: folder != self.version)


RELEASES = [Release(folder) for folder in sorted(FOLDER.iterdir()) if folder.is_dir()]
IDS = [release.folder.name for release in RELEASES]
