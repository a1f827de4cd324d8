"""`dvc repro` of one stage of the toy project, as a flow does it."""

from flows.repro import Repro


def repro(stage, root, said=None, shares=None, sent=None):
    """Returns the verdict; `said` and `shares` get the lines and the progress, `sent` are the stages that may run."""
    said, shares = ([] if given is None else given for given in (said, shares))
    with Repro([stage], root, said.append, sent) as one:
        return one.bring(stage, said.append, shares.append)
