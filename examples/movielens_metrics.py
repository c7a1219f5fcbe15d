# SPDX-License-Identifier: Apache-2.0
"""How good the predictions are: AUC from ranks, and hit rate among sampled negatives."""

from __future__ import annotations

import numpy as np
from movielens_data import DataError, Interactions

NEGATIVES = 100
HITS_AT = 10


def auc(label: np.ndarray, score: np.ndarray) -> float:
    """Chance that a random positive scores above a random negative; a tie counts half.

    This is the Mann-Whitney statistic: the positives' ranks, less the ranks they have among
    themselves. NaN when one of the classes is absent.
    """
    _, position, count = np.unique(score, return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks, which starts at 1.
    rank = (np.cumsum(count) - (count - 1) / 2)[position]
    positives = float(np.sum(label > 0))
    negatives = len(label) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    above = float(np.sum(rank[label > 0])) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def candidates(data: Interactions, positives: Interactions, seed: int) -> np.ndarray:
    """Items to rank: int64[len(positives), 1 + NEGATIVES], the positive's own item first.

    The others are drawn without repetition from the items that its user never rated in all of
    `data`, so that none of them is a like that happens to lie elsewhere.
    """
    rng = np.random.default_rng(seed)
    catalogue = np.unique(data.item)
    unseen = {
        user: np.setdiff1d(catalogue, data.item[data.user == user])
        for user in np.unique(positives.user)
    }
    fewest = min(map(len, unseen.values()), default=0)
    if fewest < NEGATIVES:
        raise DataError(
            f"a user of the held-out tail leaves {fewest} items unrated, and {NEGATIVES} are "
            "needed to rank a like among; pass --data with more items or more ratings."
        )
    negatives = [rng.choice(unseen[user], NEGATIVES, replace=False) for user in positives.user]
    return np.column_stack([positives.item, np.stack(negatives)])


def hits(score: np.ndarray) -> np.ndarray:
    """Whether column 0 is among the best HITS_AT of its row; in a tie it counts as the worse."""
    return np.sum(score[:, 1:] >= score[:, :1], axis=1) < HITS_AT


def daily_auc(data: Interactions, score: np.ndarray, days: int) -> tuple[np.ndarray, np.ndarray]:
    """`(day, auc)` over the predictions of the `days` days that end with each day of `data`.

    Most days have a few hundred ratings of a few users, too few for a steady figure of their own.
    """
    ends = np.unique(data.day)
    first = np.searchsorted(data.day, ends - days, side="right")
    last = np.searchsorted(data.day, ends, side="right")
    windows = zip(first, last, strict=True)
    return ends, np.array([auc(data.label[a:b], score[a:b]) for a, b in windows])
