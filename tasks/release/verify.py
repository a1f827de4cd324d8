"""Verify a release without trusting who sent it: files, signature, attestation, card, scores and exported models.

Files are read, and nothing in them is run. Values are compared under the names that the release states, so that a newer
version verifies a release of an older one. A check that cannot be made, such as the signature of an unsigned release,
is skipped and says so. A release has no texts, so exported models are compared with the model on generated inputs.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ipu_model.core.files import read_json, sha256_of
from ipu_model.core.units import shorten
from tasks.downstream.card_costs import remove_costs
from tasks.downstream.gate.exports import MAX_LOGIT_DIFFERENCE
from tasks.downstream.gate.gate import COUNTED_ALIKE
from tasks.downstream.gate.released_scores import read_scores
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.model import find_model
from tasks.downstream.kind import kind_of
from tasks.models.model_card import FRONT_MATTER, SCORE_ROW
from tasks.params.strict_yaml import parse_yaml
from tasks.plan.named_files import leads_outside
from tasks.records.duplicate_report import WITHOUT
from tasks.release.provenance import hash_of
from tasks.release.release import (
    CARD,
    METRICS,
    NAMES,
    OF_SIGNING,
    PROVENANCE,
    SCORES,
    STAGE_RUNS,
    WEIGHTS,
    content_of,
    tag_of,
)
from tasks.release.signing import (
    ATTESTATION,
    MALFORMED,
    SIGNATURE,
    Trust,
    compare_files,
    list_files,
    read_attestation,
    read_signed_files,
)
from tasks.stage.artifacts import EXPORT_FILES
from tasks.stage.bounded import run_bounded
from tasks.stage.errors import InputError, PodiumError, require_packages

SHOWN = 6
EXPORT_SECONDS = 300.0
"""Time limit for computing exported models, which take some seconds."""
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
COMPARING = "tasks.downstream.export.compare_files"
DAY = re.compile(r"\d{4}-\d\d-\d\d")


class ReleaseCheck(NamedTuple):
    """Result of one check."""

    name: str
    result: Literal["ok", "failed", "skipped"]
    text: str


class CheckSkipped(Exception):
    """The check cannot be made; the message says why."""


@dataclass(frozen=True)
class ReceivedRelease:
    """Release to verify, and what is known about it from elsewhere."""

    folder: Path
    trust: Trust | None = None
    """Expected signer; None: the signature is not checked."""
    tags: frozenset[str] | None = None
    """Accepted release tags: the expected one, or those of its commit on the Hub; None: unknown."""
    receipt: Mapping[str, str] | None = None
    """Path -> SHA-256 in the receipt of the run that published it."""

    @functools.cached_property
    def links(self) -> list[str]:
        """Links that lead out of the release. Links of the Hub's cache to its own blobs do not."""
        paths = {name: self.folder / name for name in (*list_files(self.folder), SIGNATURE)}
        return [
            name
            for name, path in paths.items()
            if path.is_symlink() and (leads_outside(path, self.folder) or not path.is_file())
        ]

    @functools.cached_property
    def hashes(self) -> dict[str, str]:
        """Path -> SHA-256 of its files."""
        return {name: sha256_of(self.folder / name) for name in list_files(self.folder) if name not in self.links}

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """Title, tag and day of the release as it states them; who states them is a matter of its signature."""
        title = TITLE.search(_split_card(self.read_text(CARD))[1])
        try:
            days = [str(run["began"])[:10] for run in self.read(STAGE_RUNS).values() if run]
        except MALFORMED:
            days = []
        day = max(filter(DAY.fullmatch, days), default="unknown")
        return {"title": title[1] if title else "unknown", "tag": tag_of(self.hashes), "day": day}

    def read_text(self, name: str) -> str:
        """Return the text of a file; empty if there is none."""
        return (self.folder / name).read_bytes().decode("utf-8", "replace") if self.has(name) else ""

    def has(self, name: str) -> bool:
        """Return True if the release has a file of this name."""
        return name in self.hashes or (name == SIGNATURE and (self.folder / name).is_file())

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON object.

        Raises:
            ValueError: it is missing or damaged.
        """
        if not self.has(name):
            raise ValueError(f"{name} is missing")
        values = read_json(self.folder / name)
        if not isinstance(values, dict):
            raise ValueError(f"{name} is not a JSON object")
        return values


def verify(release: ReceivedRelease) -> list[ReleaseCheck]:
    """Make every check of a release."""
    if release.links:
        text = f"{', '.join(release.links[:SHOWN])} is a link out of the release. Copy the files themselves (cp -rL)"
        return [
            ReleaseCheck("links", "failed", text),
            *(ReleaseCheck(name, "skipped", "not checked because of the links") for name in CHECKS),
        ]
    return [_make(name, check, release) for name, check in CHECKS.items()]


def _make(name: str, check: Callable[[ReceivedRelease], str], release: ReceivedRelease) -> ReleaseCheck:
    try:
        return ReleaseCheck(name, "ok", check(release))
    except CheckSkipped as skipped:
        return ReleaseCheck(name, "skipped", str(skipped))
    except KeyError as error:
        text = f"a file of the release lacks {error}"
    except (PodiumError, OSError, *MALFORMED) as error:
        text = str(error) or type(error).__name__
    return ReleaseCheck(name, "failed", text.replace(f"{release.folder}/", ""))


def _require(problems: list[str]) -> None:
    if problems:
        raise ValueError(shorten(problems, SHOWN, "; "))


def check_files(release: ReceivedRelease) -> str:
    """Check every file against the signature, the receipt and the tag."""
    known, hashes = [], dict(release.hashes)
    if release.has(SIGNATURE):
        _require(compare_files(read_signed_files(release.folder / SIGNATURE), hashes, "signed"))
        known.append(SIGNATURE)
    if release.receipt is not None:
        _require(compare_files(release.receipt, content_of(hashes), "published"))
        known.append("the receipt")
    if release.tags is not None:
        tag = tag_of(hashes)
        foreign = sorted({*hashes} - NAMES)
        if foreign and tag_of({name: hashes[name] for name in {*hashes} & NAMES}) in release.tags:
            raise ValueError(f"{shorten(foreign, SHOWN)} was added")
        if tag not in release.tags:
            required = " or ".join(sorted(release.tags)) or "a release tag of this commit"
            raise ValueError(f"these files are {tag}, {required} is required")
        known.append(tag)
    if not known:
        raise CheckSkipped("no signature, receipt or tag states hashes of this release: its weights were not checked")
    return f"{len(hashes)} files as in {', '.join(known)}"


def check_signature(release: ReceivedRelease) -> str:
    """Check the signature."""
    if not release.has(SIGNATURE):
        if release.trust is not None or release.has(ATTESTATION):
            raise ValueError(f"not signed: {SIGNATURE} is missing")
        known = "the release tag" if release.tags is not None else "" if release.receipt is None else "the receipt"
        raise CheckSkipped(f"not signed{known and f', only {known} states its bytes'}")
    if release.trust is None:
        raise CheckSkipped("signed, but by whom was not checked: pass --key PUBLIC_KEY, or --identity and --issuer")
    if problem := release.trust.explain_failure(release.folder):
        raise ValueError(f"{SIGNATURE} does not verify: {problem}")
    return f"{SIGNATURE} is of {release.trust.identity or 'the owner of this key'}"


def check_attestation(release: ReceivedRelease) -> str:
    """Check the attestation against the files of the release."""
    if not release.has(ATTESTATION):
        if release.has(SIGNATURE):
            raise ValueError(f"{ATTESTATION} is missing")
        raise CheckSkipped("not signed")
    files, attested = read_attestation(release.folder / ATTESTATION)
    present = {name: sha256 for name, sha256 in release.hashes.items() if name not in OF_SIGNING}
    problems = compare_files(files, present, "attested")
    origin, metrics = release.read(PROVENANCE), release.read(METRICS)
    expected = {name: origin[name] for name in ("parameters", "parameters_sha256", "stages_sha256")}
    expected["code"] = {name: origin[name] for name in attested["code"]}
    problems += [f"its {name} differ from {PROVENANCE}" for name, value in expected.items() if attested[name] != value]
    if attested["weights_sha256"] != release.hashes.get(WEIGHTS):
        problems.append(f"it is about other weights ({attested['weights_sha256']})")
    for name, score in attested["scores"].items():
        ends = [score["value"], *score["interval"]]
        if not all(map(_is_alike, ends, [metrics.get(key) for key in (name, f"{name}_low", f"{name}_high")])):
            problems.append(f"its {name} differs from {METRICS}")
    if attested["verdict"]["accepted"] is not True:
        problems.append("its gate rejected the model")
    _require(problems)
    checks = attested["verdict"]["checks"]
    return f"the gate accepted these weights with {len(checks)} checks, of {len(files)} files"


def _is_alike(value: Any, other: Any) -> bool:
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return abs(value - other) <= COUNTED_ALIKE
    return bool(value == other)


def check_provenance(release: ReceivedRelease) -> str:
    """Check the parameters and the tokenizer against the provenance."""
    origin = release.read(PROVENANCE)
    problems = []
    if hash_of(origin["parameters"]) != origin["parameters_sha256"]:
        problems.append("its parameters were changed: they have another SHA-256")
    trained_with = (origin["model"] or {}).get("tokenizer_sha256")
    if trained_with and (tokenizer := release.hashes.get("tokenizer.json")) != trained_with:
        problems.append(f"tokenizer.json has SHA-256 {tokenizer}, the model was trained with {trained_with}")
    _require(problems)
    revision = origin["git"]["revision"]
    return f"parameters and tokenizer as trained, code {revision[:12] if revision else 'not recorded'}"


def check_scores(release: ReceivedRelease) -> str:
    """Check the metrics against the scores of the examples."""
    entry = infer_entry(find_model(str(release.folder)))
    task = kind_of(entry).scores(entry)
    metrics = release.read(METRICS)
    scores = read_scores(task, release.folder / SCORES)
    count, problems = sum(map(len, scores.values())), []
    if metrics[task.counted] != count:
        problems.append(f"{METRICS} counts {metrics[task.counted]} {task.record}s, {SCORES} has {count}")
    outcomes = {split: np.array(list(rows.values()), dtype=np.float64) for split, rows in scores.items()}
    has_all = bool(task.quantities) and not task.known_quantities
    computed = task.metrics.compute(outcomes) if has_all else {}
    compared = {name: value for name, value in computed.items() if name in metrics}
    problems += [
        f"{METRICS} states {name}={metrics[name]}, {SCORES} gives {value:.4f}"
        for name, value in compared.items()
        if not _is_alike(metrics[name], value)
    ]
    problems += [
        f"{METRICS} states {name}={value} outside its interval ({low} to {high})"
        for name, (value, low, high) in _read_intervals(metrics).items()
        if not low - COUNTED_ALIKE <= value <= high + COUNTED_ALIKE
    ]
    _require(problems)
    how = f"{', '.join(compared)} computed again" if compared else "counted; their labels are not published"
    return f"scores of {count:,} {task.record}s: {how}"


def _read_intervals(metrics: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the value and the ends of the interval of every metric that has one."""
    return {
        name: (value, metrics[f"{name}_low"], metrics[f"{name}_high"])
        for name, value in metrics.items()
        if f"{name}_low" in metrics and f"{name}_high" in metrics
    }


def check_card(release: ReceivedRelease) -> str:
    """Check the scores of the card against the metrics, and its text against the provenance."""
    origin, metrics = release.read(PROVENANCE), release.read(METRICS)
    parts = [metrics, *metrics.get(WITHOUT, [])]
    known = [interval for part in parts for interval in _read_intervals(part).values()]
    rows = {(f"{value:.2f}", f"{low:.2f} to {high:.2f}") for value, low, high in known}
    text = release.read_text(CARD)
    front, body = _split_card(text)
    section = body.partition("\n## Scores\n")[2].partition("\n## ")[0]
    lines = list(SCORE_ROW.finditer(section))
    problems = [line[0].strip("| ") for line in lines if (line["value"], line["ends"]) not in rows]
    models = (parse_yaml(front) or {}).get("model-index") or []
    index = [metric for model in models for result in model["results"] for metric in result["metrics"]]
    values = [value * share for value, *_ in known for share in (1, 0.01)]
    problems += [
        f"{metric['name']} {metric['value']} (model-index)"
        for metric in index
        if not any(abs(metric["value"] - value) <= COUNTED_ALIKE for value in values)
    ]
    if problems or not lines:
        raise ValueError(f"{CARD} states {shorten(problems, SHOWN, '; ') or 'no score'}, {METRICS} gives other values")
    if "card_sha256" not in origin:
        return f"{len(lines)} scores as in {METRICS}; this release states no hash of the rest"
    if hash_of(remove_costs(text, origin["training"])) != origin["card_sha256"]:
        raise ValueError(f"{CARD} has other text than {PROVENANCE} states")
    return f"{len(lines)} scores as in {METRICS}, text as in {PROVENANCE}"


def _split_card(text: str) -> tuple[str, str]:
    """Return the metadata, in YAML, and the text of a card."""
    match = FRONT_MATTER.match(text)
    return (match[1], text[match.end() :]) if match else ("", text)


def check_exports(release: ReceivedRelease) -> str:
    """Check that the exported files are those that the gate accepted, and that they compute what the model computes."""
    present, verdicts = {*release.hashes} & {*EXPORT_FILES.values()}, {}
    if release.has(ATTESTATION):
        verdicts = read_attestation(release.folder / ATTESTATION)[1]["exports"]
    accepted = {name for name, verdict in verdicts.items() if verdict["accepted"]}
    if not present | accepted:
        raise CheckSkipped("no exported model")
    problems = [f"{name} is missing" for name in sorted(accepted - present)]
    if release.has(ATTESTATION):
        problems += [f"the gate did not accept {name}" for name in sorted(present - accepted)]
    _require(problems)
    try:
        require_packages("export", ("onnxruntime", "transformers"))
    except InputError as error:
        raise CheckSkipped(f"{', '.join(sorted(present))}: not computed ({error})") from None
    arguments = [str(release.folder), *sorted(present)]
    differences = json.loads(run_bounded(COMPARING, arguments, EXPORT_SECONDS, "the exported models"))
    limits = {EXPORT_FILES[form]: most for form, most in MAX_LOGIT_DIFFERENCE.items()}
    for name, largest in differences.items():
        if largest is None or largest > limits.get(name, np.inf):
            problems.append(f"a logit of {name} {'is not finite' if largest is None else f'differs by {largest:.2g}'}")
    _require(problems)
    shown = ", ".join(f"{name} {difference:.2g}" for name, difference in differences.items())
    return f"largest difference of a logit from the model on generated inputs: {shown}"


CHECKS: Mapping[str, Callable[[ReceivedRelease], str]] = {
    "files": check_files,
    "signature": check_signature,
    "attestation": check_attestation,
    "provenance": check_provenance,
    "scores": check_scores,
    "card": check_card,
    "exports": check_exports,
}
