"""`serve`: groups to a trainer behind the Atropos trajectory API, none lost."""
