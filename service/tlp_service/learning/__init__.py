"""Learning from what the farm measures: what may be served, and what is trained when."""
