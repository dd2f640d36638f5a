"""Which estimator's gradient has the most signal for its noise, on the rollouts of a record."""
