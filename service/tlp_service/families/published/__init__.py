"""`published`: TLP as its paper has it, which scores candidates from their primitives."""
