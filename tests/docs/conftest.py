"""Counts the code blocks of the pages that were executed, and says at the end which were not and why."""

from collections import Counter

import pytest
from serving import start

#: How each block was dealt with -> how many.
EXECUTED: Counter[str] = Counter()
#: Place and reason of each block that cannot be executed.
NOT_EXECUTED: list[str] = []


@pytest.fixture(scope="session")
def admin_key():
    """Key of the registry's routes of the server below."""
    return "key-of-the-examples"


@pytest.fixture(scope="session")
def server(session_dir, admin_key):
    """A server of the shipped version, which the blocks ask."""
    with start(session_dir / "examples", admin_key=admin_key) as running:
        yield running


@pytest.fixture
def executed() -> Counter[str]:
    return EXECUTED


@pytest.fixture
def not_executed() -> list[str]:
    return NOT_EXECUTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not EXECUTED:
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(EXECUTED.items()))
    terminalreporter.section("code blocks of the documentation")
    terminalreporter.line(f"executed: {EXECUTED.total()} ({kinds})")
    terminalreporter.line(f"not executed: {len(NOT_EXECUTED)}")
    for reason in NOT_EXECUTED:
        terminalreporter.line(f"  {reason}")
