"""Examples of GLUE as sequences of rows."""

from tasks.downstream.glue import about
from tasks.downstream.labelled.rows import LabelledRowsTask


class Task(about.Task, LabelledRowsTask):
    """Each example becomes one sequence."""
