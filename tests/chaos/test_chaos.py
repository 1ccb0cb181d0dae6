"""A short run of the chaos script; `chaos.py --seconds 300 --records 20000` is the long one."""

import pytest
from chaos import run

pytestmark = pytest.mark.slow


def test_every_record_is_in_the_store_once_whatever_is_killed(tmp_path):
    happened = run(seconds=20, count=1500, workers=3, seed=1, folder=tmp_path)
    assert sum(happened["kills"].values()) > 3
    assert happened["worker_faults"] == []
    assert (happened["lost"], happened["stored_twice"], happened["unexpected"]) == (0, 0, 0)
    assert happened["stored_once"] == happened["records"]
    assert happened["rejected"] == happened["corrupt"] > 0
    assert (happened["dropped"], happened["left_in_stream"]) == (0, 0)
    assert happened["predict_answered"] > 0
