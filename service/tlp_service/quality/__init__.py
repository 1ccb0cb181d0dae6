"""Prediction error: compares scores with measured costs over windows of the newest measurements."""
