"""One self-contained HTML page of a verdict, for people: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


def page(values: Mapping[str, Any]) -> str:
    """HTML of a verdict (tasks/checks.py)."""
    rows = "".join(
        f"<tr><td>{'passed' if check['ok'] else 'FAILED'}</td><td>{escape(check['name'])}</td>"
        f"<td>{escape(check['required'])}</td><td>{escape(check['found'])}</td></tr>"
        for check in values["checks"]
    )
    return f"<!doctype html><meta charset=utf-8><title>{escape(values['data'])}</title><table>{rows}</table>\n"
