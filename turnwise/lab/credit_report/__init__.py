"""The signal and noise of each estimator's gradient, measured on the rollouts of a record."""
