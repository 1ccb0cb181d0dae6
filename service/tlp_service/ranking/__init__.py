"""Ranking metrics per task and over tasks, and the filter for implausible costs. Pure functions."""
