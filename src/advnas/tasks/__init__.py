"""Data, loss and metric of the things one can search for."""

from advnas.tasks.task import Task

__all__ = ["Task"]
