"""`published`: TLP as its paper has it, which scores candidates from their primitives."""

#: Name of the family and of its first model.
NAME = "published"

#: Name of the model with one head per platform.
MULTI_HEAD = "published-mtl"
