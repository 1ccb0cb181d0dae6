"""Generated parts of the documentation are equal to what their scripts generate now."""

import json
import sys

import pytest
from doc_blocks import ROOT

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks")]

import pictures
import results_page
import tables
from provenance import command
from sections import SECTIONS

from tlp_service.monitoring import Metrics
from tlp_service.settings import Settings

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def test_the_tables_are_of_the_code():
    page = tables.PAGE.read_text()
    assert page == tables.with_tables(page), "run scripts/write_docs"


def test_the_settings_table_has_each_setting_with_a_meaning():
    rows = tables.settings_table().splitlines()[2:]
    assert len(rows) == len(Settings.model_fields)
    for name, row in zip(Settings.model_fields, rows, strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[0] == f"`TLP_{name.upper()}`"
        assert cells[3].endswith(".")
    assert "| `TLP_PORT` | `8000` | whole number at least 0 and at most 65535 |" in tables.settings_table()


def test_the_metrics_table_has_each_metric_that_is_served(server):
    served = server.get("/metrics")[1].decode()
    names = {line.split()[2] for line in served.splitlines() if line.startswith("# TYPE ")}
    table = tables.metrics_table()
    assert names <= {row.split("`")[1] for row in table.splitlines()[2:]}
    assert "| `tlp_requests_total` | counter | `route`, `status` | Requests answered. |" in table
    assert len(list(Metrics().registry.collect())) <= len(table.splitlines()) - 2


def test_the_page_of_results_is_of_the_figures():
    assert results_page.PAGE.read_text() == results_page.page(), "run make results"


def test_the_pictures_are_of_the_figures(tmp_path):
    demo = ROOT / "benchmarks" / "results" / "demo.json"
    pictures.write_pictures(json.loads(demo.read_text()), tmp_path)
    for drawn in tmp_path.iterdir():
        assert (ROOT / "docs" / "pictures" / drawn.name).read_text() == drawn.read_text(), "run make results"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_file_of_figures_says_where_they_come_from(path):
    document = json.loads(path.read_text())
    assert set(document) == {"command", "date", "version", "commit", "machine", "figures"}
    assert all(document[name] for name in document)
    assert not document["commit"].endswith("+"), "measured on a working tree with changes"
    assert " /" not in document["command"], "names a folder of one machine"
    assert path.stem in {section.name for section in SECTIONS}, "no section of docs/results.md shows it"


def test_a_command_names_no_folder_outside_of_the_repository():
    told = command(
        [str(ROOT / "benchmarks" / "load.py"), "/home/me/logs/0.json", "--out", str(ROOT / "x.json")]
    )
    assert told == "benchmarks/load.py 0.json --out x.json"
    assert command([str(ROOT / "scripts" / "demo" / "__main__.py")]) == "scripts/demo"


def test_the_tuning_curve_is_of_the_best_so_far():
    assert list(pictures.best_so_far([3.0, None, 1.0, 2.0])) == [3.0, 3.0, 1.0, 1.0]
