"""What rewards are made of: small functions of values, and the weights that make one reward of them."""
