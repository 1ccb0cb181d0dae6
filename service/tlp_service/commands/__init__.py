"""The ``tlp`` command: one module per command."""
