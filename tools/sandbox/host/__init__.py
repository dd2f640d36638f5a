"""Common parts of the backends."""
