"""`dvc repro` of one stage of the toy project, as a flow does it."""

from flows import dvc_leftovers
from flows.repro import Repro


def repro(stage, root, said=None, shares=None, sent=None):
    """Returns the verdict; `said` and `shares` get the lines and the progress, `sent` are the stages that may run."""
    said, shares = ([] if given is None else given for given in (said, shares))
    dvc_leftovers.mend(root, said.append)
    with Repro(root, sent) as one:
        return one.bring(stage, said.append, shares.append)
