"""A policy small enough to be learned in a minute, through the real loop, credit and wire."""
