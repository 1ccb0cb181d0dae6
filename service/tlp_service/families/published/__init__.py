"""The family `published`: TLP as in its paper, which scores candidates from their primitives."""
