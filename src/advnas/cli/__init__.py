"""The command line. Torch is imported inside the commands, so that help answers at once."""

import sys

try:
    from advnas.cli.main import main
except KeyboardInterrupt:  # before there was anything to stop
    print("advnas: Stopped.", file=sys.stderr)
    raise SystemExit(130) from None

__all__ = ["main"]
