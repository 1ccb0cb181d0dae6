"""The differences between tuners: how they write primitives, records and workloads.

A *dialect* is one object, a `dialect.Dialect`, which `registry.find` returns by name. Requests, records and
stored rows name their dialect; ``ansor`` is the default one and is not stated. Outside the folder of a
dialect, no code depends on which dialect it is.

To add one here, write a folder beside `ansor` whose module calls `registry.register`, and name it in
`registry`. Dialects of other packages are found by their entry points: a distribution that declares ::

    [project.entry-points."tlp_client.dialects"]
    my_dialect = "my_package.my_module:MyDialect"

adds `MyDialect`, a subclass of `Dialect`, to workers, servers and commands of its environment.
"""
