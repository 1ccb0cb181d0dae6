"""Whose work is done next, and the threads that do it."""
