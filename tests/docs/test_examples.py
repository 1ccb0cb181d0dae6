"""Every code block of README, CONTRIBUTING and docs is executed, or says in the page's source why it cannot be.

The blocks of a page run in order, in one folder, beside one real server. Blocks that need TVM run in
``tests/worker/test_doc_examples.py``.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, Block, pages, read_blocks
from serving import HANG_S, Server

from tlp_service.records.platform_table import PlatformTable

#: Pages whose commands are for the root of the repository, and write nothing there.
IN_REPOSITORY = {"CONTRIBUTING.md"}

#: Marks of the pages whose blocks train, start servers of their own, or start pytest.
_MARKS = dict.fromkeys(("README.md", "CONTRIBUTING.md", "operate.md"), pytest.mark.slow)
_MARKS["train.md"] = pytest.mark.training


def _page(path: Path):
    marks = [_MARKS[path.name]] if path.name in _MARKS else []
    return pytest.param(path, marks=marks, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize("page", [_page(p) for p in pages() if read_blocks(p)])
def test_the_blocks_of_a_page_work(page, server, admin_key, tmp_path, executed, not_executed):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    folder = ROOT if page.name in IN_REPOSITORY else tmp_path
    reader = Reader(server, admin_key, folder, tmp_path)
    for block in read_blocks(page):
        if (reason := block.reason_not_to_run) is not None:
            not_executed.append(f"{block}: {reason}")
        elif block.needs_tvm:
            compile(block.text, str(block), "exec")
            not_executed.append(f"{block}: compiled here; tests/worker executes it, since it needs TVM")
        elif block.language == "text":
            not_executed.append(f"{block}: a drawing, no code")
        else:
            executed[reader.execute(block)] += 1


class Reader:
    """Somebody who tries all blocks of a page.

    Parameters
    ----------
    server : Server
        Answers instead of the one at port 8000.
    admin_key : str
        Key of its registry's routes.
    folder : Path
        Where commands run.
    scratch : Path
        For what blocks write elsewhere.
    """

    def __init__(self, server: Server, admin_key: str, folder: Path, scratch: Path) -> None:
        self._server, self._admin_key = server, admin_key
        self._folder, self._scratch = folder, scratch
        self._answer = None

    def execute(self, block: Block) -> str:
        """Execute a block and return its kind; a block of unknown language fails the test."""
        if "answer" in block.notes:
            assert shape(json.loads(block.text)) == shape(self._answer), f"{block}: {self._answer}"
            return "JSON answers"
        kinds = {"sh": (self._shell, "sh"), "json": (self._post, "JSON bodies"), "csv": (self._table, "csv")}
        assert block.language in kinds, f"{block}: no test executes {block.language!r}; add it or say why not"
        run, kind = kinds[block.language]
        run(block)
        return kind

    def _post(self, block: Block) -> None:
        assert block.route is not None, f"{block}: the heading above names no route"
        method, path = block.route
        assert method == "POST"
        status, self._answer = self._server.post(path, json.loads(block.text))
        assert status == 200, f"{block}: {self._answer}"

    def _table(self, block: Block) -> None:
        (table := self._scratch / "table.csv").write_text(block.text)
        assert len(PlatformTable.read(table).rows) == len(list(csv.DictReader(block.text.splitlines())))

    def _shell(self, block: Block) -> None:
        text = block.text.replace("http://localhost:8000", self._server.url).replace(
            "--port 8000", "--port 0"
        )
        text = text.replace("/var/lib/tlp", str(self._scratch / "tlp")).replace(
            "tlp train ", "tlp train --epochs 1 "
        )
        if "tlp serve" in text:
            self._serve(block, text.replace("tlp serve", "exec tlp serve"))
            return
        done = subprocess.run(
            self._bash(text), check=False, capture_output=True, text=True, timeout=HANG_S, **self._where()
        )
        assert done.returncode == 0, f"{block}:\n{done.stdout}{done.stderr}"

    def _serve(self, block: Block, text: str) -> None:
        """Start the server of a block, and stop it when it listens."""
        server = subprocess.Popen(self._bash(text), stdout=subprocess.PIPE, text=True, **self._where())
        line = server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(HANG_S) == 0, block
        server.stdout.close()
        assert "listening on" in line, block

    def _bash(self, text: str) -> list[str]:
        return ["bash", "-euo", "pipefail", "-c", text]

    def _where(self) -> dict:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TLP_")}
        environment |= {"TLP_ADMIN_KEY": self._admin_key, "TLP_TRAINER": "0", "TLP_RECORDER": "0"}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        return {"cwd": self._folder, "env": environment}


def shape(value):
    """Return a JSON value with its leaves replaced by the names of their types; a list by the shapes that it holds."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(shape(inner), sort_keys=True) for inner in value})
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def test_a_shape_tells_fields_and_types_and_no_values():
    assert shape({"a": [0.5, None]}) == shape({"a": [None, 1, 2]})
    assert shape({"a": [0.5]}) != shape({"a": [None]})
    assert shape({"a": 1}) != shape({"b": 1})


def test_every_block_has_a_language():
    unnamed = [str(block) for page in pages() for block in read_blocks(page) if not block.language]
    assert not unnamed


def test_blocks_are_read_with_notes_and_routes(tmp_path):
    text = "## `POST /v1/x`\n\n<!-- not run: why -->\n```sh\na\nb\n```\n\n## Other\n\n```json\n{}\n```\n"
    page = ROOT / "tests" / "docs" / "none.md"
    blocks = read_blocks(_Text(page, text))
    assert [(b.line, b.language, b.text, b.reason_not_to_run) for b in blocks] == [
        (4, "sh", "a\nb\n", "why"),
        (11, "json", "{}\n", None),
    ]
    assert [b.route for b in blocks] == [("POST", "/v1/x"), None]


class _Text:
    """A page that is not on disk."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text

    def read_text(self) -> str:
        return self._text

    def relative_to(self, root: Path) -> Path:
        return self._path.relative_to(root)
