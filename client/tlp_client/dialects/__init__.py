"""What differs between tuners: how they write primitives, records and workloads.

A *dialect* is one object, a `dialect.Dialect`, which `registry.find` returns by name. Requests, records and stored rows name their
dialect; ``ansor`` is the default one and is not stated. Outside the folder of a dialect, no code depends on which dialect it is.

To add a dialect, write a folder beside `ansor` whose module calls `registry.register`, and name it in `registry`.
"""
