"""Scoring of predict requests with a model version."""
