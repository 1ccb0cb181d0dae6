r"""The JSON that client and server exchange, format 1.

A predict request holds each distinct primitive once and the candidates as lists of indices into them
(2,048 Ansor candidates: some 100 kB instead of 950 kB)::

    {"format": 1,
     "task": {"workload_key": "[\"matmul\", 256]", "target": "llvm", "platform": "epyc-9004-2c"},
     "version": null, "on_invalid": "report",
     "primitives": [["CI", 1], ["SP", 2, 0, 256, [16, 4, 1], 1]],
     "candidates": [[0, 1], [1]]}

Without ``primitives`` the candidates are lists of primitives themselves. ``platform``, ``version`` and
``on_invalid`` may be left out. The answer is
``{"format": 1, "model": …, "version": …, "scores": [0.7, null], "errors": [{"candidate": 1, "error": …}]}``:
higher is faster, comparable only within one task and one version. With ``"validity": true`` in the request it also has
``"validity"``, how likely each candidate is to build and run, of versions that tell it.

A measurement request holds records with ids that the client made, and who measured them::

    {"format": 1, "worker": "host-7", "platform": "epyc-9004-2c", "version": "published-0123456789ab",
     "on_invalid": "report", "records": [{"id": "3f2a…-1", "record": {"i": …, "r": …, "v": "v0.6"}}]}

and its answer is ``{"format": 1, "accepted": 1, "duplicates": 0, "rejected": []}``.

Candidates and records of a tuner other than Ansor state their dialect (`tlp_client.dialects`): ``"dialect"`` in ``task`` of a predict
request, and beside ``worker`` in a measurement request, for all of its records. Without it they are Ansor's. A server that does not know
the dialect answers 422 ``unsupported`` with the names of those that it knows.

With ``"on_invalid": "reject"`` (the default) one bad candidate or record refuses the request with 422;
with ``"report"`` it is answered by itself and the others are kept.

Clients and servers of different releases work together by these rules:

- A server refuses a request that it does not understand as a whole, with the code ``unknown_format``, ``unknown_field`` or
  ``unsupported``. Earlier servers answer ``invalid``. Both concern the request, so the client keeps its records.
- Only ``rejected`` in an answer 200 says that a record is wrong. Accepted, duplicate and rejected records add up to the records
  of the request.
- Any release may add fields to answers. Clients ignore fields that they do not know.
- New fields of requests are optional. A client sends one only if it knows that the server supports it, or sends the request
  again without it after 422 ``unknown_field`` or, from earlier servers, ``invalid``. No measurement depends on such a field, except one that is not Ansor's on ``dialect``: it waits for a server that
  knows the field.
- A client treats an unknown code by its status.
"""
