"""The checks of `turnwise check`, which need no model."""
