"""Several processes at work on one search."""
