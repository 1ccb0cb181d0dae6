"""From tuning logs to a model version."""
