"""Model versions on disk."""
