"""Measured records on their way into the store."""
