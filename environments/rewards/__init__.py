"""Rewards that any environment can use, and the judge."""
