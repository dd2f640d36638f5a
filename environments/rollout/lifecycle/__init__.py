"""An environment's life: its parts, its opening and closing, and the calls of its hooks."""
