"""`python -m advnas`."""

from advnas.cli import main

main()
