"""Which platform is trained next, with results computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_service.learning.turns import Standing, in_turn


def names(standings, needed=100, newcomers_first=True):
    return [standing.platform for standing in in_turn(standings, needed, newcomers_first)]


@pytest.mark.parametrize(
    ("standing", "least"),
    [
        ({}, 100),
        ({"trained": 1000}, 100),
        ({"is_drifting": True}, 25),
        ({"is_overdue": True}, 1),
        ({"refusals": 1}, 200),
        ({"refusals": 3}, 800),
        ({"refusals": 3, "is_overdue": True}, 200),
        ({"refusals": 3, "is_drifting": True}, 200),
        ({"refusals": 10**9}, 100 * 2**30),
    ],
)
def test_a_platform_is_due_at_so_many_new_records(standing, least):
    trained = standing.get("trained", 0)
    assert Standing("p", trained + least, **standing).is_due(100)
    assert not Standing("p", trained + least - 1, **standing).is_due(100)


def test_no_new_record_is_never_enough():
    assert not Standing("p", 5, 5, is_overdue=True, is_drifting=True).is_due(1)
    assert not Standing("p", 3, 5, is_overdue=True).is_due(1)


def test_what_gains_the_most_is_first():
    """Drifting first, then the fewest refusals, then the most new records relative to the last verdict."""
    a, b, c, d = (
        Standing("a", 1200, 1000),
        Standing("b", 400, 200),
        Standing("c", 3000, 1000, refusals=1),
        Standing("d", 1150, 1000, is_drifting=True),
    )
    assert names([a, b, c, d]) == ["d", "b", "a", "c"]
    assert names([Standing("x", 100), Standing("z", 300), Standing("y", 300)]) == ["y", "z", "x"]


def test_those_that_learned_before_and_newcomers_take_turns():
    crowd = [Standing(f"junk{n}", 900 - n) for n in range(4)]
    known = [Standing("honest", 1200, 1000), Standing("other", 1100, 1000)]
    assert names([*crowd, *known]) == ["junk0", "honest", "junk1", "other", "junk2", "junk3"]
    assert names([*crowd, *known], newcomers_first=False)[:2] == ["honest", "junk0"]


@given(
    st.lists(
        st.builds(
            Standing,
            platform=st.text(max_size=3),
            records=st.integers(0, 5000),
            trained=st.integers(0, 5000),
            refusals=st.integers(0, 3),
            is_drifting=st.booleans(),
            is_overdue=st.booleans(),
        ),
        unique_by=lambda s: s.platform,
    ),
    st.integers(1, 1000),
)
def test_each_that_is_due_has_one_turn_whatever_the_order_they_are_named_in(standings, needed):
    found = in_turn(standings, needed)
    assert found == in_turn(reversed(standings), needed)
    assert sorted(s.platform for s in found) == sorted(s.platform for s in standings if s.is_due(needed))
