"""Open tasks by name. Modules are imported when a task is opened, since some need optional packages."""

from __future__ import annotations

from importlib import import_module

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.tasks.base import Task, TaskRequest
from unsmooth.tasks.table import TASKS


def open_task(name: str, request: TaskRequest) -> Task:
    """Open a task.

    Args:
        name: Name of the task, one of `TASKS`.
        request: Model spec, data, recipe and options of the task.

    Returns:
        The task, with its data located and checked; `build` builds its model.

    Raises:
        UnsmoothError: If there is no such task, or if the request does not suit it.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    if not TASKS[name].takes_images:
        for setting in ("val_data", "data_dir"):
            if getattr(request, setting) is not None:
                raise UnsmoothError(
                    f"{setting} is not supported by the task {name} (got {str(getattr(request, setting))!r}). Its data "
                    "must be in one folder, data (--data)."
                )
    task: Task = import_module(f"unsmooth.tasks.{name}.task").open_task(request)
    return task
