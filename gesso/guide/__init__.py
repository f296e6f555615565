"""Constraints."""
