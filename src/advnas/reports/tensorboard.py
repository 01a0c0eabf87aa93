"""Curves for TensorBoard, from the records that every search leaves."""

from pathlib import Path
from typing import Any

from advnas.records.journal import read_journal
from advnas.reports.study import read_study


def write_events(folder: Path) -> Path:
    """Write FOLDER/tensorboard, one folder per run: loss, entropy, advantages and probabilities."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("This needs the package tensorboard. Write pip install 'advnas[tensorboard]'.") from error
    target = folder / "tensorboard"
    for run in read_study(folder).runs:
        with SummaryWriter(str(target / run.name)) as writer:
            path = run.folder / "metrics.jsonl"
            for line in read_journal(path) if path.exists() else ():
                _write_step(writer, line)
            for record in run.records:
                for decision, row in record.probabilities.items():
                    for operation, value in row.items():
                        writer.add_scalar(f"probability {decision}/{operation}", value, record.step)
    return target


def _write_step(writer: Any, line: dict[str, Any]) -> None:
    phase, number = line["phase"], line["number"]
    writer.add_scalar(f"loss/{phase}", line["loss"], number)
    writer.add_scalar(f"entropy/{phase}", line["entropy"], number)
    for decision, value in line["advantages"].items():
        writer.add_scalar(f"advantage/{decision}", value, number)
