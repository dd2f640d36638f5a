"""How a conversation becomes token ids, and ids a message: one renderer per chat format."""
