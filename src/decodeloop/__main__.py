"""`python -m decodeloop`."""

from decodeloop.cli.main import main

main()
