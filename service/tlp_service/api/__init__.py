"""HTTP: routes, bodies, answers."""
