"""Measures of rankings, of one task and of many, and which costs they count. Pure functions."""
