"""Items: where they come from, what they are called, and the groups planned from them."""
