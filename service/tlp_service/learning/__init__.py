"""Continuous training on new measurements: scheduling, fine-tuning and the gate before serving."""
