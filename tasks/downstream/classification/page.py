"""What people see of an evaluation of texts of one's own."""

from tasks.downstream.classification import scores
from tasks.downstream.labelled.page import LabelledPageTask


class Task(scores.Task, LabelledPageTask):
    """The page of texts with labels."""
