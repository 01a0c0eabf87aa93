"""The command line. Torch is imported inside the commands, so that help answers at once."""

import sys


def main() -> None:
    """`advnas ...`"""
    try:
        from advnas.cli.main import main as begin

        begin()
    except KeyboardInterrupt:  # before there was anything to stop
        print("advnas: Stopped.", file=sys.stderr)
        raise SystemExit(130) from None
