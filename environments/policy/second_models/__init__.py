"""Models beside the policy, asked for text that nobody trains on: a judge, a simulated user, a summariser."""
