"""Data, loss and metric of the things one can search for."""

from advnas.tasks.task import Task, mean_over

__all__ = ["Task", "mean_over"]
