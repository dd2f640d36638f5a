"""Judges Python functions that an agent repairs; nothing that the agent writes can forge a verdict."""
