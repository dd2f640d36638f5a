"""An environment's life: what it opens and closes, and how its hooks are asked."""
