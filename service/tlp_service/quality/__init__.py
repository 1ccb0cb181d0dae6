"""Prediction error: how far scores are from what was measured, in windows of the newest measurements."""
