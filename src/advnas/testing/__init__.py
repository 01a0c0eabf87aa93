"""Checks that third parties can run on their own strategies and spaces."""
