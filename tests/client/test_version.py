"""The version is the same wherever it is written, and the changelog has a section on it."""

import re
from pathlib import Path

import tlp_client

ROOT = Path(__file__).resolve().parents[2]


def test_package_and_code_have_the_same_version():
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.*)"$', project, re.MULTILINE)[1] == tlp_client.__version__


def test_changelog_begins_with_unreleased_and_this_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(re.escape(f"[{tlp_client.__version__}]") + r" - \d{4}-\d\d-\d\d", headings[1])
