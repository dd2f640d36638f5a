"""Logged sessions: conversations that somebody else had, as trajectories."""
