"""Settings of every test: hypothesis draws the same examples each run and never judges by the clock."""

from hypothesis import settings

settings.register_profile("turnwise", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("turnwise")
