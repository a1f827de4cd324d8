"""glue/<task>/evaluation/report.html: scores, how classes were confused, and the worst mistakes; one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.downstream.glue.answers import Examples, predictions_of
from tasks.downstream.glue.scores import Values
from tasks.downstream.glue.tasks import GlueTask
from tasks.pages.markup import html_text

WORST = 25
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; }
td, th { border-bottom: 1px solid var(--line); vertical-align: top; } td.number { text-align: right; }
"""


def page(task: GlueTask, metrics: Mapping[str, Any], sets: Mapping[str, tuple[Examples, Values]]) -> str:
    """The evaluation as an HTML page.

    Args:
        metrics: the content of metrics/glue-<task>.json.
        sets: examples and logits [examples, classes] of each development set.
    """
    body = [f"<h1>{html_text(task.title)}</h1>", _scores(metrics)]
    for split, (examples, logits) in sets.items():
        predictions = predictions_of(task, logits)
        body.append(f"<h2>{html_text(split)}: {len(examples.labels):,} examples</h2>")
        if not task.is_regression:
            body.append(_confusion(task, examples.labels, predictions))
        body.append(_mistakes(task, examples, logits, predictions))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html_text(task.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body>\n{''.join(body)}\n</body></html>\n"
    )


def _scores(metrics: Mapping[str, Any]) -> str:
    rows = [
        f'<tr><td>{html_text(name)}</td><td class="number">{metrics[name]:.2f}</td>'
        f"<td>{metrics[f'{name}_low']:.2f} to {metrics[f'{name}_high']:.2f}</td></tr>"
        for name in metrics
        if f"{name}_low" in metrics
    ]
    constant = f'<tr><td>best constant answer</td><td class="number">{metrics["constant_score"]:.2f}</td><td></td></tr>'
    heads = "<tr><th>metric</th><th>percent</th><th>95% interval</th></tr>"
    return f"<table>{heads}{''.join(rows)}{constant}</table>"


def _confusion(task: GlueTask, labels: Values, predictions: Values) -> str:
    classes = len(task.labels)
    counts = np.bincount((labels * classes + predictions).astype(int), minlength=classes**2).reshape(classes, classes)
    heads = "".join(f"<th>predicted {html_text(name)}</th>" for name in task.labels)
    rows = "".join(
        f"<tr><th>{html_text(name)}</th>" + "".join(f'<td class="number">{count:,}</td>' for count in row) + "</tr>"
        for name, row in zip(task.labels, counts.tolist(), strict=True)
    )
    return f"<table><tr><th>label</th>{heads}</tr>{rows}</table>"


def _mistakes(task: GlueTask, examples: Examples, logits: Values, predictions: Values) -> str:
    """Wrong classes the model was surest of, or values that are farthest off."""
    if task.is_regression:
        badness = np.abs(predictions - examples.labels)
        shown = [f"{value:.2f}" for value in predictions]
        truth = [f"{value:.2f}" for value in examples.labels]
        title = "Farthest off"
    else:
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        sure = (odds / odds.sum(axis=1, keepdims=True)).max(axis=1)
        badness = np.where(predictions == examples.labels, 0.0, sure)
        shown = [f"{task.labels[int(p)]} ({s:.3f})" for p, s in zip(predictions, sure, strict=True)]
        truth = [task.labels[int(label)] for label in examples.labels]
        title = "Wrong, and sure of it"
    worst = [number for number in np.argsort(-badness, kind="stable")[:WORST].tolist() if badness[number] > 0]
    rows = "".join(
        f"<tr><td>{number}</td><td>{html_text(truth[number])}</td><td>{html_text(shown[number])}</td>"
        f"<td>{html_text(examples.texts[number]).replace(chr(9), '<br>')}</td></tr>"
        for number in worst
    )
    heads = "<tr><th>example</th><th>label</th><th>predicted</th><th>text</th></tr>"
    return f"<p>{title}:</p><table>{heads}{rows}</table>" if rows else "<p>No mistake.</p>"
