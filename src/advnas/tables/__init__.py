"""Tabular benchmarks: every architecture of a space, trained long ago, looked up now."""
