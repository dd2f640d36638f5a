"""The commands of `turnwise`, one file each, imported only when they run."""
