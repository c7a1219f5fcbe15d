# SPDX-License-Identifier: Apache-2.0
"""MovieLens-100K with tables that grow, beside the two usual fixed tables.

One model, one optimizer and one seed are trained on three kinds of embedding table:

1. dynamic: dynemb_jax, keyed by the raw ids, nothing known about them beforehand;
2. hashed: fixed tables with as many rows as the dynamic ones came to use, ids hashed modulo. A row
   takes the same bytes in both; the index of the dynamic tables is extra and printed apart;
3. full vocabulary: fixed tables with a row for every id, those of the future included.

Each goes through two experiments. The stream predicts every calendar day before training on it.
The fit trains for some epochs on the first nine tenths of the ratings and is measured on the last
tenth: AUC, and how often a like is among the best ten when it is ranked with 100 items that its
user never rated. Four stars or more is a like.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from movielens_data import DataError, Interactions, load
from movielens_metrics import candidates
from movielens_report import (
    DYNAMIC,
    FULL,
    HASHED,
    Results,
    progress,
    results_table,
    verdicts,
    write_curves,
    write_metrics,
)
from movielens_trials import (
    FitResult,
    Settings,
    StreamResult,
    Variant,
    dynamic,
    fit,
    full_vocabulary,
    hashed,
    stream,
)
from rich.console import Console

HISTORY_LENGTH = 20
TAIL_SHARE = 0.1


class Optimizer(enum.StrEnum):
    """The names in OPTIMIZERS, as a command line option."""

    ADAGRAD = "adagrad"
    ADAM = "adam"
    SGD = "sgd"


def main(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the first nine tenths.")] = 3,
    dim: Annotated[int, typer.Option(min=1, help="Columns of an embedding.")] = 16,
    optimizer: Annotated[Optimizer, typer.Option(help="Of the tables.")] = Optimizer.ADAGRAD,
    seed: Annotated[
        int, typer.Option(help="On a CPU the same seed repeats the figures exactly.")
    ] = 0,
    data: Annotated[
        Path | None, typer.Option(help="ml-100k.inter or u.data; otherwise it is downloaded once.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures and curves.")] = Path(
        "out/movielens"
    ),
) -> None:
    """Trains on MovieLens-100K with dynamic, hashed and full-vocabulary tables, and compares."""
    console = Console(soft_wrap=True)
    settings = Settings(dim=dim, epochs=epochs, optimizer=optimizer.value, seed=seed)
    try:
        ratings = load(data, history_length=HISTORY_LENGTH)
        results = compare(ratings, settings, console)
    except DataError as error:
        Console(stderr=True, soft_wrap=True).print(f"movielens: {error}", markup=False)
        raise typer.Exit(1) from None

    out.mkdir(parents=True, exist_ok=True)
    write_metrics(out / "metrics.json", ratings, results, settings)
    write_curves(out / "curves.png", ratings, results)
    console.print(results_table(ratings, results, settings))
    for holds, claim in verdicts(ratings, results):
        console.print(f"{'HOLDS' if holds else 'FAILS'}: {claim}", highlight=False)
    console.print(f"Wrote metrics.json and curves.png to {out}", highlight=False)


def compare(ratings: Interactions, settings: Settings, console: Console) -> Results:
    """Runs both experiments on the three kinds of table."""
    split = int(len(ratings) * (1 - TAIL_SHARE))
    train, tail = ratings[:split], ratings[split:]
    likes = tail[np.flatnonzero(tail.label)]
    ranked = candidates(ratings, likes, settings.seed)

    def both(name: str, streamed: Variant, fitted: Variant) -> tuple[StreamResult, FitResult]:
        with progress(console, f"{name}: stream", len(ratings)) as watch:
            streaming = stream(streamed, ratings, settings, watch)
        with progress(console, f"{name}: fit", settings.epochs * len(train)) as watch:
            return streaming, fit(fitted, train, tail, ranked, settings, watch)

    # The dynamic tables go first: how many rows the hashed ones get is what these came to use.
    ours = both(DYNAMIC, dynamic(settings), dynamic(settings))
    same_rows = [{table: s.rows for table, s in result.stats.items()} for result in ours]
    full = full_vocabulary(settings, ratings)
    return {
        DYNAMIC: ours,
        HASHED: both(HASHED, *(hashed(settings, rows) for rows in same_rows)),
        FULL: both(FULL, full, full),
    }


if __name__ == "__main__":
    typer.run(main)
