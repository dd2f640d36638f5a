"""Logged sessions: conversations from elsewhere, as trajectories."""
