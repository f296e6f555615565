"""Benchmarks that need data from elsewhere. They are not part of the wheel."""
