"""Shipped environments by name, for tests that hold of each of them."""

from environments.run.loading import SHIPPED

WITH_ITEMS = tuple(name for name in SHIPPED if name != "harbor_tasks")
"""Those with items of their own; `harbor_tasks` has those of a folder that is named, and tests of its own."""
