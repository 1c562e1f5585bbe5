"""Intervals that hold what they say for few units: means of documents, of blocks of one document, shares of answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extrapolate.errors import ResultError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean, and how sure it is.

    Attributes:
        value: of the mean.
        error: its standard error; NaN where nothing can be said.
        freedom: degrees of freedom of Student's t for the error, not always whole.
    """

    value: float
    error: float
    freedom: float

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Ends of the interval that holds the truth with this probability; NaN where nothing can be said.

        Raises:
            ResultError: for a confidence that is not between 0 and 1.
        """
        if not 0 < confidence < 1:
            raise ResultError(f"confidence must be between 0 and 1, got {confidence}")
        if math.isnan(self.error):
            return math.nan, math.nan
        import scipy.special  # here, so that a command's start need not wait for it

        half = self.error * float(scipy.special.stdtrit(self.freedom, (1 + confidence) / 2))
        return self.value - half, self.value + half

    @property
    def p(self) -> float:
        """Probability of a mean at least as far from 0 if the truth is 0; NaN where nothing can be said."""
        if math.isnan(self.error):
            return math.nan
        if self.error == 0:
            return 1.0 if self.value == 0 else 0.0
        import scipy.special

        return float(2 * scipy.special.stdtr(self.freedom, -abs(self.value / self.error)))


def of_documents(losses: Array, weights: Array) -> Estimate:
    """The weighted mean of independent units: a ratio of sums, linearised, with Student's t.

    Squared residuals are weighed so that their sum is unbiased for the variance where units spread alike, and the
    degrees of freedom are Satterthwaite's for that sum: n - 1 for equal weights, fewer where a few units weigh most.

    Source: Bell and McCaffrey 2002, Bias reduction in standard errors for linear regression with multi-stage samples
    (CR2 with its degrees of freedom), for a mean.

    Args:
        losses: (n,) weighted losses, as result rows keep them.
        weights: (n,) not negative.
    """
    some = weights > 0
    losses, weights = losses[some], weights[some]
    if not losses.size or not (np.isfinite(losses).all() and np.isfinite(weights).all()):
        return Estimate(math.nan, math.nan, math.nan)
    share = weights / weights.sum()
    mean = float(losses.sum() / weights.sum())
    left = 1 - 2 * share + share @ share  # of a unit's variance in its residual
    if losses.size < 2 or (left <= 0).any():
        return Estimate(mean, math.nan, math.nan)
    factor = share**2 / left
    residual = losses / weights - mean
    variance = float(factor @ residual**2)
    # the variance is e'Me of the units' deviations e; freedom = tr(M)² / tr(M²), M = (I - p1')A(I - 1p')
    total = factor.sum()
    trace = total - 2 * factor @ share + total * share @ share
    turned = total / 2 * share - factor
    squares = (
        2 * (turned @ turned) * (share @ share)
        + 2 * (turned @ share) ** 2
        + 4 * (factor * turned * share).sum()
        + factor @ factor
    )
    return Estimate(mean, math.sqrt(variance), float(trace**2 / squares))


def of_blocks(losses: Array, weights: Array) -> Estimate:
    """The weighted mean of successive units of one text, which are correlated, so their number counts for less.

    The variance of the mean is that of slow waves along the text: the mean square of ν cosine weights of the residuals,
    ν = 0.4·n^(2/3) rounded down, with Student's t of ν degrees. For units that are independent it is exact. Where a
    model breaks its loss drifts along every text, which is no chance, so the slowest n/20 waves are left out.

    Source: Lazarus, Lewis, Stock and Watson 2018, HAR inference: recommendations for practice, Eq. 10 and section 3;
    drift as the slowest cosines, as in the analysis of series of brain images (Holmes et al. 1997).

    Args:
        losses: (n,) weighted losses in the order of the text.
        weights: (n,) positive.
    """
    some = weights > 0
    losses, weights = losses[some], weights[some]
    count = losses.size
    if not count or not (np.isfinite(losses).all() and np.isfinite(weights).all()):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(losses.sum() / weights.sum())
    if count < 2:
        return Estimate(mean, math.nan, math.nan)
    waves, drift = max(1, int(0.4 * count ** (2 / 3))), count // 20
    residual = (losses - mean * weights) * count / weights.sum()
    place = (np.arange(count) + 0.5) / count
    cosines = math.sqrt(2 / count) * np.cos(math.pi * np.outer(drift + np.arange(1, waves + 1), place))  # (ν, n)
    variance = float(np.mean((cosines @ residual) ** 2)) / count
    return Estimate(mean, math.sqrt(variance), float(waves))


def estimate(losses: Array, weights: Array, unit: str) -> Estimate:
    """:func:`of_blocks` for units called ``block``, :func:`of_documents` for any other."""
    return (of_blocks if unit == "block" else of_documents)(losses, weights)


def share_interval(right: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share: of ``count`` answers ``right`` are; NaN for no answer.

    Source: Wilson 1927, JASA 22, 209-212.

    Raises:
        ResultError: for a confidence that is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ResultError(f"confidence must be between 0 and 1, got {confidence}")
    if count < 1:
        return math.nan, math.nan
    import scipy.stats  # a second that a sweep's start need not pay

    found = scipy.stats.binomtest(right, count).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def exact_pair_test(only_one: int, only_other: int) -> float:
    """Probability of so unlike shares on the same questions: those one alone answers right should be half each's.

    Source: McNemar's test in its exact form, a two-sided binomial test.
    """
    if only_one + only_other == 0:
        return 1.0
    import scipy.stats

    return float(scipy.stats.binomtest(only_one, only_one + only_other, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted so that over all of them together an error is no likelier than each says; NaN stays.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    p = np.asarray(p_values, dtype=float)
    found = np.full(p.shape, math.nan)
    order = [i for i in np.argsort(p) if not math.isnan(p[i])]
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p[i]))
        found[i] = least
    return [float(x) for x in found]
