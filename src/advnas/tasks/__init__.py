"""Data and loss of the things one can search for."""
