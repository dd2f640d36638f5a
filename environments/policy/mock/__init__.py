"""Model servers without a model: a script behind the formats of real ones."""
