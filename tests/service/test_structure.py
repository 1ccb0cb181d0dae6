"""Rules that keep the seams open and the parts small."""

import ast
import inspect
from pathlib import Path

import pytest

from tlp_service.api.answers import STATUS, status_of
from tlp_service.errors import QueueFull, RequestFault
from tlp_service.families.lookup import _OWN

SERVICE = Path(__file__).resolve().parents[2] / "service" / "tlp_service"
CLIENT = Path(__file__).resolve().parents[2] / "client" / "tlp_client"
#: Folder of each family -> the names that only code in it may compare.
FAMILIES = {
    Path(inspect.getfile(type(family))).parent: {family.name, *family.earlier_names, *family.models}
    for family in _OWN
}


def compared_in(source):
    """Return the texts that a module compares something with, matches, or looks something up by."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        else:
            continue
        for part in parts:
            found += [c.value for c in ast.walk(part) if isinstance(c, ast.Constant)]
    return [text for text in found if isinstance(text, str)]


@pytest.mark.parametrize(
    "source",
    [
        "x == 'published'",
        "x in ('a', 'published')",
        "y['published']",
        "{'published': 1}",
        "match x:\n case 'published': pass",
    ],
)
def test_a_comparison_is_found(source):
    assert "published" in compared_in(source)


def test_no_code_outside_a_family_compares_its_name():
    found = {}
    for path in [*SERVICE.rglob("*.py"), *CLIENT.rglob("*.py")]:
        others = {n for folder, names in FAMILIES.items() if not path.is_relative_to(folder) for n in names}
        if names := others.intersection(compared_in(path.read_text())):
            found[path.name] = names
    assert not found


def test_every_fault_of_a_request_has_a_status():
    def kinds(of):
        for kind in of.__subclasses__():
            yield kind
            yield from kinds(kind)

    assert set(kinds(RequestFault)) == set(STATUS)
    assert status_of(type("Other", (QueueFull,), {})) == 429


#: Maximum lines of a module and of a function, docstring included.
MAX_MODULE, MAX_FUNCTION = 400, 45


@pytest.mark.parametrize("package", [SERVICE, CLIENT], ids=["service", "client"])
def test_modules_and_functions_stay_short(package):
    found = {}
    for path in package.rglob("*.py"):
        source = path.read_text()
        if source.count("\n") > MAX_MODULE:
            found[path.name] = source.count("\n")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION:
                    found[f"{path.name}: {node.name}"] = lines
    assert not found
