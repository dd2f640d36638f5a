"""Records: their groups, and their tables as datasets."""

from turnwise.own_packages import refuse_foreign_packages

refuse_foreign_packages()

from environments.record.recorder import read_groups
from environments.tables.loading import features, load

__all__ = [
    "features",
    "load",
    "read_groups",
]
