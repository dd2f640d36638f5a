"""What a model server gives, found out with a short conversation before a run: `turnwise check-model`."""
