"""Whether a trainer takes the step that credit says: canaries with known advantages, and what a step is."""
