"""The results of bench.gpu as Markdown and as pictures."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ipu_model.core.files import read_json

REPORT = "gpu.md"
PODIUM = "podium"


def write_report(folder: Path, failures: Mapping[str, str]) -> str:
    """Write gpu.md from the results so far, and return its text.

    Args:
        failures: Part -> why it did not end well; empty if it did.
    """
    results = {part: read_results(folder, part) for part in failures}
    lines = ["# Measured by python -m bench.gpu", ""]
    sections = {
        "tests": _tests,
        "parity": _parity,
        "speed": _speed,
        "profile": _profile,
        "estimates": _estimates,
    }
    for part, failure in failures.items():
        lines += [f"## {part}", "", *sections[part](results[part]), ""]
        if failure:
            lines += ["Not complete: " + failure, ""]
    text = "\n".join(lines)
    (folder / REPORT).write_text(text, encoding="utf-8")
    return text


def read_results(folder: Path, part: str) -> list[dict[str, Any]]:
    """Return the results of a part; none if it wrote none."""
    path = folder / f"{part}.json"
    found: list[dict[str, Any]] = read_json(path) if path.is_file() else []
    return found


def _tests(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in results:
        yield str(one["outcome"])
        yield from one["failed"]


def _parity(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{sum(one['equal'] for one in results)} of {len(results)} are within the tolerance."
    for precision in ("fp32", "bf16"):
        own = [one for one in results if one["precision"] == precision]
        if own:
            losses, weights = (max(one[name] for one in own) for name in ("losses", "weights"))
            yield f"{precision}: losses differ by at most {losses:.1e} (relative), weights by {weights:.1e}"
    for one in results:
        if not one["equal"]:
            yield "- {head}, {family}, {precision}: losses {losses:.1e}, weights {weights:.1e}".format(**one)


def _speed(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not results:
        return
    facts, peak = results[0], results[0]["peak_flops"]
    named = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "peak_flops")
    yield f"{named}; fastest bf16 product {peak / 1e12:.1f} TFLOP/s"
    yield ""
    yield "| case | configuration | real tokens/s | times podium is faster | peak MB | share of the peak |"
    yield "|---|---|---:|---:|---:|---:|"
    for one in results[1:]:
        ours = median_rate(one["variants"].get(PODIUM, {}))
        for name, variant in one["variants"].items():
            rate = median_rate(variant)
            if rate is None:
                yield f"| {one['case']} | {name} | failed | | | |"
                continue
            ratio = f"{ours / rate:.2f}" if ours and not name.startswith(PODIUM) else ""
            memory = f"{max(x['peak_mb'] for x in variant['rounds']):,.0f}"
            shares = [x["flops"] / x["seconds"] / peak for x in variant["rounds"] if "flops" in x]
            share = f"{median(shares):.0%}" if shares else ""
            yield f"| {one['case']} | {name} | {rate:,.0f} | {ratio} | {memory} | {share} |"
    for one in results[1:]:
        for name, variant in one["variants"].items():
            if variant.get("compile_reason"):
                yield f"\n{one['case']}, {name}: compile {variant['compile']}, {variant['compile_reason']}"
            if "failure" in variant:
                yield f"\n{one['case']}, {name} failed: {variant['failure']}"


def median_rate(variant: Mapping[str, Any]) -> float | None:
    """Return the median of the real tokens per second of the rounds; None without rounds."""
    rates = [one["tokens"] / one["seconds"] for one in variant.get("rounds", ())]
    return median(rates) if rates else None


def _profile(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in results:
        shares = ", ".join(f"{group} {share:.0%}" for group, share in one["shares"].items())
        yield f"{one['case']}, {one['seconds']:.4f} s an update: {shares}"
        yield ""
        yield "| kernel | group | share | calls an update |"
        yield "|---|---|---:|---:|"
        for kernel in one["heaviest"]:
            name = kernel["kernel"].replace("|", "/")[:80]
            yield f"| `{name}` | {kernel['group']} | {kernel['share']:.1%} | {kernel['calls']:.0f} |"
        yield ""


def _estimates(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| case | --measure, s an update | s an update | --measure, MB | peak MB | bound, MB |"
    yield "|---|---:|---:|---:|---:|---:|"
    for one in results:
        yield (
            f"| {one['case']} | {one['measured_seconds']:.4f} | {one['seconds']:.4f} "
            f"| {one['measured_mb']:,.0f} | {one['mb']:,.0f} | {one['bound_mb']:,.0f} |"
        )


def write_pictures(folder: Path) -> str:
    """Write speed.png and profile.png; return a sentence if they cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        return " (no pictures: matplotlib is not installed)"
    from matplotlib.figure import Figure

    speed = [one for one in read_results(folder, "speed")[1:] if median_rate(one["variants"].get(PODIUM, {}))]
    if speed:
        figure = Figure(figsize=(9, 1 + 1.1 * len(speed)), layout="constrained")
        for axis, one in zip(figure.subplots(len(speed), 1, squeeze=False).flatten(), speed, strict=True):
            rates = {name: median_rate(variant) or 0.0 for name, variant in one["variants"].items()}
            axis.barh(list(rates)[::-1], list(rates.values())[::-1], color="#1b6ca8")
            axis.set_title(f"{one['case']}, real tokens/s", fontsize=9)
            axis.tick_params(labelsize=8)
        figure.savefig(folder / "speed.png", dpi=120)
    profiled = read_results(folder, "profile")
    if profiled:
        figure = Figure(figsize=(9, 1 + 0.8 * len(profiled)), layout="constrained")
        axis = figure.subplots()
        for number, one in enumerate(profiled):
            start = 0.0
            for group, share in sorted(one["shares"].items()):
                axis.barh(number, share, left=start)
                axis.text(start + share / 2, number, group if share > 0.08 else "", ha="center", fontsize=8)
                start += share
        axis.set_yticks(range(len(profiled)), [one["case"] for one in profiled], fontsize=8)
        axis.set_title("share of the time of an update", fontsize=9)
        figure.savefig(folder / "profile.png", dpi=120)
    return ""
