"""The environments that come with Turnwise."""
