"""The model families: one folder each, with all that only this family knows."""
