"""Training data of a credited group: views, padding, checks and packing."""
