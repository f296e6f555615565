"""Distillation from a model's own runs: record them, and derive a recipe that trains on them."""
