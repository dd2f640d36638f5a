"""New environments: the folder that `turnwise new` makes, one template per kind."""
