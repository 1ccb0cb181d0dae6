r"""The JSON that client and server exchange, format 1.

A predict request holds each distinct primitive once and the candidates as lists of indices into them
(2,048 Ansor candidates take about 100 kB instead of 950 kB)::

    {"format": 1,
     "task": {"workload_key": "[\"matmul\", 256]", "target": "llvm", "platform": "epyc-9004-2c"},
     "version": null, "on_invalid": "report",
     "primitives": [["CI", 1], ["SP", 2, 0, 256, [16, 4, 1], 1]],
     "candidates": [[0, 1], [1]]}

Without ``primitives``, each candidate is a list of primitives. ``platform``, ``version`` and ``on_invalid``
are optional. The answer is
``{"format": 1, "model": …, "version": …, "scores": [0.7, null], "errors": [{"candidate": 1, "error": …}]}``:
a higher score is faster. Scores are comparable only within one task and one version. If the request has
``"validity": true`` and the version supports it, the answer also has ``"validity"``: the probability that
each candidate builds and runs.

A measurement request holds the name of the worker and its records, with ids made by the client::

    {"format": 1, "worker": "host-7", "platform": "epyc-9004-2c", "version": "published-0123456789ab",
     "on_invalid": "report", "records": [{"id": "3f2a…-1", "record": {"i": …, "r": …, "v": "v0.6"}}]}

and its answer is ``{"format": 1, "accepted": 1, "duplicates": 0, "rejected": []}``.

Requests of a tuner other than Ansor state its dialect (`tlp_client.dialects`) in the field ``"dialect"``. It
is part of ``task`` in a predict request. In a measurement request it is beside ``worker`` and applies to all
records. The default is Ansor's. A server that does not know the dialect answers 422 ``unsupported`` and names
the known ones.

With ``"on_invalid": "reject"``, the default, one invalid candidate or record refuses the whole request with
422. With ``"report"``, each invalid one is reported individually and the others are processed.

Clients and servers of different releases work together by these rules:

- A server refuses a request that it does not understand as a whole, with the code ``unknown_format``,
  ``unknown_field`` or ``unsupported``. Earlier servers answer ``invalid``. Both concern the request, so the
  client keeps its records.
- Only ``rejected`` in an answer 200 says that a record is wrong. Accepted, duplicate and rejected records add
  up to the records of the request.
- Any release may add fields to answers. Clients ignore fields that they do not know.
- New fields of requests are optional. A client sends one only if it knows that the server supports it, or
  sends the request again without it after 422 ``unknown_field`` or, from earlier servers, ``invalid``. No
  measurement depends on such a field, with one exception: measurements of another dialect need ``dialect``,
  and are kept until a server supports it.
- A client treats an unknown code by its status.
"""
