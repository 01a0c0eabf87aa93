"""The paper's studies as data, and its theorems."""
