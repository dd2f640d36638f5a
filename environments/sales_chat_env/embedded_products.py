"""The embedded products: what there is to sell."""

PRODUCTS: tuple[str, ...] = (
    "armchair", "backpack", "bicycle", "coat", "desk lamp", "guitar", "hammock", "headphones", "kettle",
    "keyboard", "rain jacket", "running shoes", "sofa", "suitcase", "tent", "watch",
)  # fmt: skip
