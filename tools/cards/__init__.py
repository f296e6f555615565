"""Compile every kernel for graphics cards of other architectures, without a GPU: `make cards`."""
