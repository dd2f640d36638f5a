"""Runs over an environment's items: `process`, `evaluate`, and what they show."""
