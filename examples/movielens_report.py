# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: progress, the table of results, the verdicts, and the files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from movielens_data import Interactions
from movielens_metrics import HITS_AT, NEGATIVES, auc, daily_auc
from movielens_trials import FitResult, Settings, StreamResult, Watch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

mpl.use("Agg")  # before pyplot: no display is needed
from matplotlib import pyplot as plt

DYNAMIC, HASHED, FULL = "dynemb_jax", "hashed ids", "full vocabulary"
COLORS = {DYNAMIC: "#0072b2", HASHED: "#d55e00", FULL: "#7f7f7f"}
TOLERANCE = 0.005  # of the full vocabulary's AUC
WINDOW_DAYS = 7

Results = dict[str, tuple[StreamResult, FitResult]]


@contextlib.contextmanager
def progress(console: Console, label: str, total: int) -> Iterator[Watch]:
    """Gives a callback that shows how far `label` is: a bar in a terminal, else a few lines."""
    if not console.is_terminal:
        printed = 0

        def say(done: int, stats: dict[str, Any]) -> None:
            nonlocal printed
            if done * 4 // total > printed:
                printed = done * 4 // total
                console.print(f"{label}: {100 * done // total} %, {_growth(stats)}")

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn())
    with Progress(
        *columns, TimeElapsedColumn(), TextColumn("{task.fields[growth]}"), console=console
    ) as bar:
        task = bar.add_task(label, total=total, growth="")
        yield lambda done, stats: bar.update(task, completed=done, growth=_growth(stats))


def results_table(data: Interactions, results: Results, settings: Settings) -> Table:
    """One column a kind of table; memory is that of the stream, the larger of the two."""
    table = Table(box=box.ASCII)
    table.add_column("")
    lines: dict[str, list[str]] = {}
    for name, (stream, fit) in results.items():
        table.add_column(name, justify="right")
        cells = {
            "stream AUC": f"{auc(data.label, stream.score):.4f}",
            "tail AUC": f"{fit.tail_auc[-1]:.4f}",
            f"tail HR@{HITS_AT}": f"{fit.hit_rate[-1]:.4f}",
            "item + user rows, stream": _rows(stream.stats),
            "item + user rows, fit": _rows(fit.stats),
            "row memory": f"{_total_rows(stream.stats) * settings.row_bytes / 1024:.0f} KiB",
            "index memory": f"{_index_bytes(stream.stats) / 1024:.0f} KiB",
            "seconds": f"{stream.seconds + fit.seconds:.1f}",
        }
        for line, cell in cells.items():
            lines.setdefault(line, []).append(cell)
    for line, row in lines.items():
        table.add_row(line, *row)
    return table


def verdicts(data: Interactions, results: Results) -> list[tuple[bool, str]]:
    """The two claims of this demo, each `(holds, sentence with the figures)`."""
    figures = {
        name: {
            "stream AUC": auc(data.label, stream.score),
            "tail AUC": fit.tail_auc[-1],
            f"HR@{HITS_AT}": fit.hit_rate[-1],
        }
        for name, (stream, fit) in results.items()
    }
    ours, hashed, full = figures[DYNAMIC], figures[HASHED], figures[FULL]
    better = ", ".join(f"{metric} {ours[metric] - hashed[metric]:+.4f}" for metric in ours)
    areas = ("stream AUC", "tail AUC")
    apart = ", ".join(f"{metric} {ours[metric] / full[metric] - 1:+.2%}" for metric in areas)
    return [
        (
            all(ours[metric] > hashed[metric] for metric in ours),
            f"better than hashed ids with as many rows: {better}",
        ),
        (
            all(ours[metric] >= full[metric] * (1 - TOLERANCE) for metric in areas),
            f"not more than {TOLERANCE:.1%} of AUC below the full vocabulary: {apart}",
        ),
    ]


def write_metrics(path: Path, data: Interactions, results: Results, settings: Settings) -> None:
    """Everything that was measured, as JSON; only the seconds differ between equal runs."""
    variants = {}
    for name, (stream, fit) in results.items():
        _, daily = daily_auc(data, stream.score, 1)
        variants[name] = {
            "stream_auc": auc(data.label, stream.score),
            "stream_auc_by_day": [None if np.isnan(value) else float(value) for value in daily],
            "rows_by_day": stream.rows_by_day,
            "train_loss_by_epoch": fit.loss,
            "tail_auc_by_epoch": fit.tail_auc,
            f"hit_rate_at_{HITS_AT}_by_epoch": fit.hit_rate,
            "rows": {
                "stream": {table: s.rows for table, s in stream.stats.items()},
                "fit": {table: s.rows for table, s in fit.stats.items()},
            },
            "row_memory_bytes": {
                "stream": _total_rows(stream.stats) * settings.row_bytes,
                "fit": _total_rows(fit.stats) * settings.row_bytes,
            },
            "index_bytes": _index_bytes(stream.stats),
            "seconds": {"stream": stream.seconds, "fit": fit.seconds},
        }
    metrics = {
        "settings": {**vars(settings), "ratings": len(data)},
        "days": [int(day) for day in np.unique(data.day)],
        "variants": variants,
        "claims": [{"holds": holds, "claim": text} for holds, text in verdicts(data, results)],
    }
    path.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")


def write_curves(path: Path, data: Interactions, results: Results) -> None:
    """Four panels: AUC along the stream, rows along the stream, and the tail after each epoch."""
    figure, ((quality, size), (tail, ranking)) = plt.subplots(2, 2, figsize=(12, 8))
    for name, (stream, fit) in results.items():
        # On top and dashed: it all but coincides with the full vocabulary.
        ours = {"linestyle": "--", "zorder": 3} if name == DYNAMIC else {"linestyle": "-"}
        style = {"color": COLORS[name], "label": name, "linewidth": 1.5, **ours}
        days, recent = daily_auc(data, stream.score, WINDOW_DAYS)
        quality.plot(days, recent, **style)
        total = np.sum(list(stream.rows_by_day.values()), axis=0)
        size.plot(days, total, **style)
        epochs = np.arange(1, len(fit.tail_auc) + 1)
        tail.plot(epochs, fit.tail_auc, **style, marker="o")
        ranking.plot(epochs, fit.hit_rate, **style, marker="o")
    titles = {
        quality: ("Each day predicted before training on it", "day", f"AUC, {WINDOW_DAYS} days"),
        size: ("Rows of all tables along the stream", "day", "rows"),
        tail: ("Held-out last tenth", "epoch", "AUC"),
        ranking: (
            f"Held-out likes beside {NEGATIVES} unrated items",
            "epoch",
            f"hit rate @ {HITS_AT}",
        ),
    }
    for axes, (title, x_label, y_label) in titles.items():
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
    for axes in (tail, ranking):
        axes.xaxis.get_major_locator().set_params(integer=True)
    quality.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _total_rows(stats: dict[str, Any]) -> int:
    return sum(figures.rows for figures in stats.values())


def _index_bytes(stats: dict[str, Any]) -> int:
    return sum(figures.index_bytes for figures in stats.values())


def _rows(stats: dict[str, Any]) -> str:
    return f"{stats['items'].rows:,} + {stats['users'].rows:,}"


def _growth(stats: dict[str, Any]) -> str:
    growths = sum(figures.growths for figures in stats.values())
    reserved = sum(figures.bytes for figures in stats.values())
    return f"{_rows(stats)} rows, grown {growths} times, {reserved / 2**20:.2f} MiB"
