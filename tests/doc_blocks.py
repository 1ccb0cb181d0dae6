"""The fenced code blocks of the project's Markdown pages, for the tests that execute them."""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_FENCE = re.compile(r"```(\S*)\s*$")
_COMMENT = re.compile(r"<!-- (.*) -->\s*$")
_ROUTE = re.compile(r"#+ .*`(GET|POST) (/\S+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Parameters
    ----------
    page : str
        Path of the page below the root.
    line : int
        Line of the opening fence, from 1.
    language : str
        What stands behind the fence.
    text : str
        What stands inside.
    notes : tuple of str
        Texts of the HTML comments directly above the fence.
    route : tuple of str or None
        Method and path in the nearest heading above that names a route.
    """

    page: str
    line: int
    language: str
    text: str
    notes: tuple[str, ...] = field(default=())
    route: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason_not_to_run(self) -> str | None:
        """Return why the page says that the block cannot be executed, or None."""
        reasons = [note.removeprefix("not run: ") for note in self.notes if note.startswith("not run: ")]
        return reasons[0] if reasons else None

    @property
    def needs_tvm(self) -> bool:
        """Return whether only the worker's environment can execute it."""
        return self.language == "python" and "tvm" in self.text


def pages() -> list[Path]:
    """Return the pages whose prose and blocks are tested."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    blocks: list[Block] = []
    notes: list[str] = []
    route = None
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        if found := _FENCE.match(line):
            inside = []
            for _, inner in lines:
                if inner.startswith("```"):
                    break
                inside.append(inner)
            name = str(page.relative_to(ROOT))
            blocks.append(Block(name, number, found[1], "\n".join(inside) + "\n", tuple(notes), route))
        notes = [*notes, comment[1]] if (comment := _COMMENT.match(line)) else []
        if line.startswith("#"):
            heading = _ROUTE.match(line)
            route = (heading[1], heading[2]) if heading else None
    return blocks
