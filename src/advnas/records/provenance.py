"""Where a number comes from: the command, commit, machine, versions and time that stand beside it."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path


def provenance() -> dict[str, str]:
    """Command, commit, machine, versions and time, to stand beside every number."""
    import torch  # here, so that records can be read without it

    import advnas

    return {
        "command": shlex.join([*_program(), *sys.argv[1:]]),
        "commit": _commit(),
        "machine": f"{_processor()}, {torch.get_num_threads()} threads",
        "versions": f"advnas {advnas.__version__}, Python {platform.python_version()}, torch {torch.__version__}",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _program() -> list[str]:
    """How the program was started: by our own command, or by a script of the user's."""
    script = sys.argv[0] if sys.argv else ""
    return ["advnas"] if Path(script).stem in ("advnas", "__main__") else ["python", script]


@cache
def _commit() -> str:
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
