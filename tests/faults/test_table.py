"""The table of faults names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_table_names_exists():
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (Path(__file__).parent / "README.md").read_text())
    missing = [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []
    assert len(named) > 30
