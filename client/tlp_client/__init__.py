"""What a tuning worker imports to use the cost-model service.

Importing this package costs nothing: no numpy, no urllib3, no TVM. The parts are

- ``tlp_client.records``    tuning records, typed, and back to text; ``tlp_client.logs`` reads files of them
- ``tlp_client.dialects``   what differs between tuners: primitives, record form, workload identity
- ``tlp_client.wire``       the JSON that client and server exchange
- ``tlp_client.connection`` deadlines, retry, circuit breaker over HTTP
- ``tlp_client.outbox``     measured results on their way to the service; ``tlp_client.spool`` has them on disk
- ``tlp_client.tuning_client``  what every tuner's cost model does: rounds, cache, fallback, outbox; needs no TVM
- ``tlp_client.ansor``      ``TLPRemoteModel``, the cost model for Ansor (needs TVM)
"""

__version__ = "0.2.0"
