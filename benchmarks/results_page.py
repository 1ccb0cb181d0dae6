"""Write ``docs/results.md`` and its pictures from ``benchmarks/results`` and the shipped versions' manifests.

    .venv/bin/python benchmarks/results_page.py

A benchmark without a file has no section on the page, so every figure has the command, date, version and machine it is
of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from section_bodies import shipped_table
from sections import SECTIONS, Section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
SHIPPED = ROOT / "service" / "tlp_service" / "shipped"

HEAD = """# Results

<!-- Written by `make results` from benchmarks/results/*.json. Do not edit: change benchmarks/sections.py instead. -->

All figures on this page are generated from the JSON files in `benchmarks/results`, which the benchmarks write.
A benchmark that was not run on this version has no section.
Compare ratios, not times: every benchmark measures its peer in the same run.
"""


def page() -> str:
    """Return the page for the files that there are."""
    parts = [HEAD, _shipped()]
    parts += [_section(section) for section in SECTIONS if _file(section).exists()]
    parts.append(_commands())
    return "\n".join(parts)


def _file(section: Section) -> Path:
    return RESULTS / f"{section.name}.json"


def _section(section: Section) -> str:
    document = json.loads(_file(section).read_text())
    body = section.body(document["figures"])
    return f"## {section.title}\n\n{section.text}\n\n{body}\n\n{_origin(document)}\n"


def _origin(document: dict[str, Any]) -> str:
    """Return one line: where the figures of a file come from."""
    commit = f", commit `{document['commit']}`" if document["commit"] else ""
    return (
        f"*`{document['command']}`*\n"
        f"*{document['date']}, version {document['version']}{commit}, {document['machine']}.*"
    )


def _shipped() -> str:
    manifests = [json.loads(path.read_text()) for path in sorted(SHIPPED.glob("*/manifest.json"))]
    origins = "\n".join(f"*`{m['version']}` was created on {m['created'][:10]}.*" for m in manifests)
    return f"""## Shipped versions

Ranking of the held-out test tasks, beside random choice, as each version's `manifest.json` states it.
`tlp train` wrote the manifests; the cards of [loopnest](../service/tlp_service/shipped/MODEL_CARD.md)
and [published](../service/tlp_service/shipped/PUBLISHED_CARD.md) hold the commands and the data.
Top-k is the best run time of a task divided by the best run time among the k candidates with the highest scores.

{shipped_table(manifests)}

{origins}
"""


def _commands() -> str:
    rows = "\n".join(f"| {section.title} | `{section.command}` |" for section in SECTIONS)
    return f"## How to make them again\n\n| section | command |\n| --- | --- |\n{rows}\n"


def main() -> None:
    """Write the page, and the pictures if there is a run of the demo to draw."""
    from pictures import write_pictures

    PAGE.write_text(page())
    demo = RESULTS / "demo.json"
    if demo.exists():
        write_pictures(json.loads(demo.read_text()), ROOT / "docs" / "pictures")


if __name__ == "__main__":
    main()
