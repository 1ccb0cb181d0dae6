"""Keeps versions loaded: the first one, those that the registry activates, and their trials."""
