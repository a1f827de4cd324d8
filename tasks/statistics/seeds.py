"""How sure the mean score of a recipe is: over models that differ in the seed of their training, and over examples.

Two things vary: which models the training happened to make, and which examples they are judged on. The models answer
the same examples, so the two are crossed. A bootstrap that draws models, too, is what Sellam et al. 2022 propose ("The
MultiBERTs: BERT Reproductions for Robustness Analysis", ICLR, section 4; Owen 2007, "The Pigeonhole Bootstrap", Annals
of Applied Statistics 1, has the theory). Drawn from K models their variance comes out as (K - 1) / K of what it is, and
percentiles know nothing of how little 2 or 3 models say. So the examples alone are drawn here, the same for all models;
the variance of the models' scores is estimated by itself, and both are added. The bounds are those of Student's t, with
the degrees of freedom of such a sum by Satterthwaite 1946 ("An Approximate Distribution of Estimates of Variance
Components", Biometrics Bulletin 2). docs/evaluation.md says how often either interval holds the truth.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tasks.statistics.significance import Interval

Array = NDArray[np.float64]


def interval_over_seeds(measured: Array, drawn: Array, examples: int, confidence: float) -> Interval:
    """The interval of what a recipe scores on average, over its trainings and over examples of the same kind.

    That models disagree on single examples counts in both variances, so that the interval is a little too wide rather
    than too narrow.

    Args:
        measured: the score of each model on all examples, [K].
        drawn: the same on resamples of the examples, which are those of all models, [K, R]; NaN where a resample has
            no score.
        examples: how many there are.
        confidence: mass of the central interval.

    Raises:
        ValueError: fewer than two models, or another number of them in `drawn`.
    """
    models = len(measured)
    if models < 2 or len(drawn) != models:
        raise ValueError(f"{models} scores and {len(drawn)} rows of resamples: two models at least, a row each")
    mean, means = float(measured.mean()), drawn.mean(axis=0)
    known = means[~np.isnan(means)]
    of_seeds = float(measured.var(ddof=1)) / models
    of_examples = float(known.var()) if len(known) else math.nan
    total = of_seeds + of_examples
    if not total > 0:  # NaN, too
        return Interval(mean, mean + total, mean + total)
    from scipy.stats import t  # takes 0.6 s to import

    freedom = total**2 / (of_seeds**2 / (models - 1) + of_examples**2 / max(1, examples - 1))
    half = float(t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(total)
    return Interval(mean, mean - half, mean + half)
