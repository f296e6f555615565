"""The commands: their options, and the steps they take. What needs torch is imported inside them."""
