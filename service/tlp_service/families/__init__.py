"""The model families: one folder each, with all that only this family knows.

A manifest names the family of each network. Families of other packages are found by their entry points: a distribution that declares ::

    [project.entry-points."tlp_service.families"]
    my_family = "my_package.my_module:MyFamily"

adds `MyFamily`, a subclass of `Family`, to servers, trainers and commands of its environment.
"""
