"""How well scores rank."""
