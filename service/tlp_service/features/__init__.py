"""From primitives to the rows that networks read."""
