"""Benchmarks with data from elsewhere, or of one feature. They are not part of the wheel."""
