"""What the seconds of IPUs mean for who waits: nobody hears the host while a call is at work.

The seconds are worked out in ipu_model/estimates/ipu_time.py.
"""

from __future__ import annotations

from ipu_model.estimates.ipu_constants import SWAP_SECONDS

WORTHWHILE_SHARE = 0.01
"""Of a training, for its evaluations: where they take more, a line says how to make them fewer."""


def evaluations_in_words(seconds: float, count: int, training_seconds: float) -> str:
    """What the evaluations of a training cost.

    Args:
        seconds: of one evaluation.
        count: how many the training makes; one of them follows the last update.
        training_seconds: of all updates.
    """
    share = count * seconds / training_seconds
    told = (
        f"held-out rows are judged {count} times on the IPUs, by turns with training: about {seconds:.0f} s each, "
        f"{SWAP_SECONDS:.0f} s of them assumed for changing programs, {share:.1%} of the training"
    )
    if share <= WORTHWHILE_SHARE:
        return told
    fits = int(WORTHWHILE_SHARE * training_seconds / seconds)
    enough = f"make it at most {fits}, with evaluate_every_updates" if fits else "set evaluate_every_updates to null"
    return f"{told}; to stay under {WORTHWHILE_SHARE:.0%}, {enough}"


def stops_in_words(seconds: float, every_minutes: float, every_updates: int) -> str:
    """What follows from the seconds of a call for who stops a training, or loses its host.

    Args:
        every_minutes: between checkpoints; 0 for never.
        every_updates: the same in updates.
    """
    kept = [f"{every_minutes:g} minutes"] * bool(every_minutes) + [f"{every_updates} updates"] * bool(every_updates)
    lost = (
        f"the last {' or '.join(kept)}, a call and the time of writing a checkpoint"
        if kept
        else "everything, as no checkpoints are made while it trains (checkpoint_every_minutes)"
    )
    return (
        f"a call of the IPUs takes about {seconds:.1f} s on Mk2, going by published figures: a stop is answered after "
        f"it, with a checkpoint. What is killed loses at most {lost}"
    )
