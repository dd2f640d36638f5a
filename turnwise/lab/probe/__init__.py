"""A test of trainers: groups with known advantages, and a diagnosis of a trainer's step on them."""
