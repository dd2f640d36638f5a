"""Examines environments, trainers and model servers, and teaches small policies; only `cli` imports it."""
