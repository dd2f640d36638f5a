"""What rewards are made of: small functions of values, the weights of a rubric, and a judge."""
