"""The record of a run, its statistics, and imports of logged sessions."""
