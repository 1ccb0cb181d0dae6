"""The blocks of README and docs that need TVM are executed here, against a real server and with few trials."""

import pytest
from doc_blocks import pages, read_blocks

BLOCKS = [block for page in pages() for block in read_blocks(page) if block.needs_tvm]


def test_there_are_such_blocks():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_tunes_through_the_service(block, server, small_task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = block.text.replace("http://cost-model:8000", server.url)
    text = text.replace(
        "num_measure_trials=1000", "num_measure_trials=4, num_measures_per_round=4, verbose=0"
    )
    found = {"task": small_task, "tasks": [small_task]}
    exec(compile(text, str(block), "exec"), found)  # noqa: S102  the pages are our own
    model = found["model"]
    assert model.outbox.flush(60)
    assert model.counts.predicts > 0
    assert model.counts.fallbacks == 0
    assert model.outbox.acknowledged == 4
    model.outbox.close()
