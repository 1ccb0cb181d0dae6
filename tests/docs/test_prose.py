"""The form of the pages: short lines, a short README, and links that lead somewhere."""

import re

import pytest
from doc_blocks import ROOT, pages

#: Characters of a line of prose. Tables and links need longer lines than sentences do.
MAX_LINE = 160
MAX_README_LINES = 130

_LINK = re.compile(r"\]\(([^)\s]+)\)")

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]


def prose_lines(text):
    """Yield (number, line) of the lines that are neither code nor table rows nor comments."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "<!--")):
            yield number, line


@pytest.mark.parametrize("page", PAGES)
def test_no_line_of_prose_is_long(page):
    long = [number for number, line in prose_lines(page.read_text()) if len(line) > MAX_LINE]
    assert not long, (
        f"{page.name}: lines {long}: expected at most {MAX_LINE} characters; one sentence per line"
    )


def test_code_tables_and_comments_are_no_prose():
    text = "a\n```sh\nb\n```\n| c |\n<!-- d -->\ne"
    assert list(prose_lines(text)) == [(1, "a"), (7, "e")]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for link in _LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text()), f"{page.name}: {link}"


#: Folders that paths in the pages may be relative to.
FOLDERS = (
    ROOT,
    ROOT / "service",
    ROOT / "client",
    ROOT / "service" / "tlp_service",
    ROOT / "client" / "tlp_client",
)
#: A path of this repository in the text; others, such as media types and folders of examples, begin otherwise.
_PATH = re.compile(
    r"`((?:[a-z_]+/)*[a-z_0-9]+\.py|(?:service|client|tests|benchmarks|scripts|docs)/[\w./-]*)`"
)


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    for path in _PATH.findall(page.read_text()):
        assert any((folder / path).exists() for folder in FOLDERS), f"{page.name}: {path}"


def anchors(text):
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
