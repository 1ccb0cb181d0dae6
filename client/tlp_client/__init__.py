"""The client of the cost-model service, for tuning workers.

Importing this package is cheap: it imports neither numpy nor urllib3 nor TVM. Its modules are

- ``tlp_client.records``    parses and writes tuning records; ``tlp_client.logs`` reads files of them
- ``tlp_client.dialects``   the differences between tuners: primitives, record form, workload identity
- ``tlp_client.wire``       the JSON that client and server exchange
- ``tlp_client.connection`` deadlines, retry, circuit breaker over HTTP
- ``tlp_client.outbox``     sends measured results; ``tlp_client.spool`` keeps unsent ones on disk
- ``tlp_client.tuning_client``  a cost model for any tuner: rounds, cache, fallback, outbox; no TVM
- ``tlp_client.ansor``      ``TLPRemoteModel``, the cost model for Ansor (needs TVM)
"""

__version__ = "0.2.0"
