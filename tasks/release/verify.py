"""Verify a release without trusting who sent it: files, signature, attestation, card, scores and exported models.

A check that cannot be made, such as the signature of an unsigned release, is skipped and says so. A release has no
texts, so exported models are compared with the model on generated inputs.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors import SafetensorError

from ipu_model.files import read_json, sha256_of
from ipu_model.units import shorten
from tasks.downstream.card import CardFacts, CardTask
from tasks.downstream.gate.exports import MAX_LOGIT_DIFFERENCE
from tasks.downstream.gate.gate import COUNTED_ALIKE
from tasks.downstream.gate.released_scores import read_scores
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.model import find_model
from tasks.downstream.scoring.scores import AnyScores
from tasks.models.model_card import FRONT_MATTER
from tasks.params.entries import Entry
from tasks.params.strict_yaml import parse_yaml
from tasks.plan.kinds import load_part
from tasks.release.provenance import hash_of
from tasks.release.release import CARD, METRICS, NAMES, OF_SIGNING, PROVENANCE, SCORES, WEIGHTS, content_of, tag_of
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
from tasks.stage.errors import InputError, PodiumError, require_packages

SHOWN = 6
COSTS = re.compile(r"(?:\| training \| hardware|On .*:\n\n\| file \| threads) \|.*\n\|[-|]+\n(?:\|.*\n)+\n")
"""Tables of a card that differ between equal trainings and exports; `card_sha256` of the provenance leaves them out."""
PROBES = 8
"""Number of generated inputs for exported files, and the seed of their generator."""
SECTIONS = ("Scores", "Release gate")


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
    """Release tags of its commit on the Hub; None: not on the Hub."""
    receipt: Mapping[str, str] | None = None
    """Path -> SHA-256 in the receipt of the run that published it."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Path -> SHA-256 of its files."""

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
    """Make every check of a release; `hashes` of the argument are computed here."""
    names = list_files(release.folder)
    links = [name for name in names if (release.folder / name).is_symlink()]
    hashes = {name: sha256_of(release.folder / name) for name in names if name not in links}
    release = replace(release, hashes=hashes)
    found = [_make(name, check, release) for name, check in CHECKS.items()]
    if links:
        found.insert(0, ReleaseCheck("links", "failed", f"{', '.join(links[:SHOWN])} is a link; a release has none"))
    return found


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
            tagged = ", ".join(sorted(release.tags)) or "no release tag"
            raise ValueError(f"these files would be {tag}, but this commit has {tagged}")
        known.append(tag)
    if not known:
        raise CheckSkipped("no signature, receipt or tag states hashes of this release: its weights were not checked")
    return f"{len(hashes)} files as in {', '.join(known)}"


def check_signature(release: ReceivedRelease) -> str:
    """Check the signature."""
    if not release.has(SIGNATURE):
        if release.trust is not None or release.has(ATTESTATION):
            raise ValueError(f"not signed: {SIGNATURE} is missing")
        known = "a release tag" if release.tags is not None else "nothing" if release.receipt is None else "a receipt"
        raise CheckSkipped(f"not signed: bytes are checked only against {known}")
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
    files, stated = read_attestation(release.folder / ATTESTATION)
    found = {name: sha256 for name, sha256 in release.hashes.items() if name not in OF_SIGNING}
    problems = compare_files(files, found, "attested")
    origin, metrics = release.read(PROVENANCE), release.read(METRICS)
    expected = {name: origin[name] for name in ("parameters", "parameters_sha256", "stages_sha256")}
    expected["code"] = {name: origin[name] for name in ("git", "stages_git", "code_md5")}
    problems += [f"its {name} differ from {PROVENANCE}" for name, value in expected.items() if stated[name] != value]
    if stated["weights_sha256"] != release.hashes.get(WEIGHTS):
        problems.append(f"it is about other weights ({stated['weights_sha256']})")
    for name, score in stated["scores"].items():
        ends = [score["value"], *score["interval"]]
        if not all(map(_is_alike, ends, [metrics.get(one) for one in (name, f"{name}_low", f"{name}_high")])):
            problems.append(f"its {name} differs from {METRICS}")
    if stated["verdict"]["accepted"] is not True:
        problems.append("its gate rejected the model")
    _require(problems)
    checks = stated["verdict"]["checks"]
    return f"the gate accepted these weights with {len(checks)} checks, of {len(files)} files"


def _is_alike(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= COUNTED_ALIKE
    return bool(one == other)


def check_provenance(release: ReceivedRelease) -> str:
    """Check the parameters and the tokenizer against the provenance."""
    origin = release.read(PROVENANCE)
    problems = []
    if hash_of(origin["parameters"]) != origin["parameters_sha256"]:
        problems.append("its parameters were changed: they have another SHA-256")
    trained_with = (origin["model"] or {}).get("tokenizer_sha256")
    if trained_with and (found := release.hashes.get("tokenizer.json")) != trained_with:
        problems.append(f"tokenizer.json has SHA-256 {found}, the model was trained with {trained_with}")
    _require(problems)
    revision = origin["git"]["revision"]
    return f"parameters and tokenizer as trained, code {revision[:12] if revision else 'not recorded'}"


def check_scores(release: ReceivedRelease) -> str:
    """Check the metrics against the scores of the examples."""
    task: AnyScores = load_part(_entry(release), "scores")
    metrics = release.read(METRICS)
    scores = read_scores(task, release.folder / SCORES)
    count, problems = sum(map(len, scores.values())), []
    if metrics[task.counted] != count:
        problems.append(f"{METRICS} counts {metrics[task.counted]} {task.record}s, {SCORES} has {count}")
    outcomes = {split: np.array(list(rows.values()), dtype=np.float64) for split, rows in scores.items()}
    computed = task.metrics.compute(outcomes) if not task.known_quantities else {}
    problems += [
        f"{METRICS} states {name}={metrics.get(name)}, {SCORES} gives {value:.4f}"
        for name, value in computed.items()
        if not _is_alike(metrics.get(name), value)
    ]
    for name in task.metrics.titles:
        low, value, high = (metrics[one] for one in (f"{name}_low", name, f"{name}_high"))
        if not low - COUNTED_ALIKE <= value <= high + COUNTED_ALIKE:
            problems.append(f"{METRICS} states {name}={value} outside its interval ({low} to {high})")
    _require(problems)
    how = "metrics computed again" if computed else "counted; their labels are not published"
    return f"scores of {count:,} {task.record}s: {how}"


def check_card(release: ReceivedRelease) -> str:
    """Check the figures of the card against metrics and verdict, and its text against the provenance."""
    origin, metrics = release.read(PROVENANCE), release.read(METRICS)
    [own] = origin["parameters"]["downstream"].values()
    entry, verdict = _entry(release), {}
    if release.has(ATTESTATION):
        verdict = read_attestation(release.folder / ATTESTATION)[1]["verdict"]
    facts = CardFacts(
        entry=entry,
        name=".",
        title="",
        license=None,
        language=None,
        parameters={**origin["parameters"], "downstream": {entry.name: own}},
        metrics=metrics,
        gate={"checks": verdict.get("checks", [])},
        config=release.read("config.json"),
        provenance=origin,
    )
    cards: CardTask = load_part(entry, "card")
    text = (release.folder / CARD).read_text(encoding="utf-8") if release.has(CARD) else ""
    expected, stated = _figures(cards.card(facts)), _figures(text)
    kinds = [SECTIONS[0], "model-index", *([SECTIONS[1]] if verdict else [])]
    problems = [
        f"{CARD} states {found} ({kind}), {METRICS if kind != SECTIONS[1] else ATTESTATION} gives {wanted}"
        for kind in kinds
        for found, wanted in _differences(stated[kind], expected[kind])
    ]
    if not problems and hash_of(COSTS.sub("", text)) != origin["card_sha256"]:
        problems.append(f"{CARD} has other text than {PROVENANCE} states")
    _require(problems)
    return f"{len(expected['model-index'])} figures as in {METRICS}"


def _differences(stated: list[str], expected: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of differing lines."""
    for place in range(max(len(stated), len(expected))):
        found, wanted = (one[place] if place < len(one) else "nothing" for one in (stated, expected))
        if found != wanted:
            yield found, wanted


def _figures(card: str) -> dict[str, list[str]]:
    """Return the table rows of SECTIONS, and the results of the model-index, of a card."""
    found = FRONT_MATTER.match(card)
    index = (parse_yaml(found[1]) or {}).get("model-index") or [] if found else []
    results = [metric for model in index for result in model["results"] for metric in result["metrics"]]
    values = {"model-index": [f"{one['name']} {one['value']}" for one in results]}
    for section in SECTIONS:
        body = card.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        values[section] = re.findall(r"^\| (.*) \|$", body, re.MULTILINE)
    return values


def check_exports(release: ReceivedRelease) -> str:
    """Check that the exported files are those that the gate accepted, and that they compute what the model computes."""
    present, verdicts = {*release.hashes} & {*EXPORT_FILES.values()}, {}
    if release.has(ATTESTATION):
        verdicts = read_attestation(release.folder / ATTESTATION)[1]["exports"]
    accepted = {name for name, one in verdicts.items() if one["accepted"]}
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
    differences = _compare_exports(release, sorted(present))
    limits = {EXPORT_FILES[form]: most for form, most in MAX_LOGIT_DIFFERENCE.items()}
    for name, one in differences.items():
        if not one <= limits.get(name, np.inf):
            problems.append(f"a logit of {name} {'is not finite' if np.isnan(one) else f'differs by {one:.2g}'}")
    _require(problems)
    shown = ", ".join(f"{name} {one:.2g}" for name, one in differences.items())
    return f"largest difference of a logit from the model on {PROBES} generated inputs: {shown}"


def _compare_exports(release: ReceivedRelease, names: list[str]) -> dict[str, float]:
    """Return the largest difference of each exported file from the model, on inputs from a fixed seed."""
    from tasks.downstream.export.model_export import LONGEST, draw_sequences
    from tasks.downstream.export.onnx_files import compare_with_transformers, load_model

    config = release.read("config.json")
    sequences = draw_sequences(config["vocab_size"], min(LONGEST, int(config["max_position_embeddings"]) - 2), PROBES)
    try:
        model = load_model(release.folder)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{WEIGHTS} is damaged ({str(error).splitlines()[0]})") from None
    found = {name: compare_with_transformers(model, release.folder / name, sequences) for name in names}
    return {name: np.nan if one is None else one for name, one in found.items()}


def _entry(release: ReceivedRelease) -> Entry:
    return infer_entry(find_model(str(release.folder)))


CHECKS: Mapping[str, Callable[[ReceivedRelease], str]] = {
    "files": check_files,
    "signature": check_signature,
    "attestation": check_attestation,
    "provenance": check_provenance,
    "scores": check_scores,
    "card": check_card,
    "exports": check_exports,
}
"""Name -> check, in the order of the report."""
