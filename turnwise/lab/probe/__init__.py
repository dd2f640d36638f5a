"""Whether a trainer takes the step of the credit: canaries with known advantages, and what a step is."""
