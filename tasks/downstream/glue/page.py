"""What people see of an evaluation of a GLUE task."""

from tasks.downstream.glue import scores
from tasks.downstream.labelled.page import LabelledPageTask


class Task(scores.Task, LabelledPageTask):
    """The page of texts with labels."""
