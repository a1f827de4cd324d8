"""Publish the gated model: to a folder in Hub layout, or to a Hub repository in one commit.

    python -m tasks.release.publish [NAME] [--dry-run]

Nothing is published that did not pass. All that the gate judged is read once, into copies of our own; they must be what
the stages wrote and what the verdict is about, the decision is made again from them, and they are what is sent. The Hub
token comes from the environment variable HF_TOKEN only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.downstream.entries import QUESTIONS as QUESTIONS_ENTRY
from tasks.downstream.entries import Entry, entry_of
from tasks.downstream.judging.gate import decide_again
from tasks.downstream.judging.released import scores_json
from tasks.downstream.scoring.scores import ScoresTask
from tasks.downstream.task import about, part_of
from tasks.project import artifacts
from tasks.project.errors import PublishError
from tasks.project.files import sha256_of, write_json
from tasks.project.intact import LOCK, require_judged
from tasks.project.main import run_main
from tasks.project.params import PublishParams, check, load_params, parameter_values
from tasks.release.card import CardFacts, CardTask
from tasks.release.provenance import provenance, read_json
from tasks.release.release import CARD, METRICS, PROVENANCE, SCORES, Release, gather, write_folder
from tasks.release.release_subject import QUESTIONS, Subject, subject_of
from tasks.release.seal import Hashes, held
from tasks.release.verdict import require_accepted, require_consistent, require_same_bytes, require_same_decision

if TYPE_CHECKING:
    from tasks.release.hub.commit import HubRelease


@dataclass(frozen=True)
class Kind:
    """What is released: the model of an entry."""

    name: str
    """The name of the entry."""
    subject: Subject


OF_QUESTIONS = Kind(QUESTIONS_ENTRY, QUESTIONS)


def kind_of(entry: Entry) -> Kind:
    """The release of an entry's model."""
    return Kind(entry.name, subject_of(about(entry)))


def publish(
    params: PublishParams,
    parameters: Mapping[str, Any],
    root: Path = Path(),
    *,
    dry_run: bool = False,
    kind: Kind = OF_QUESTIONS,
) -> dict[str, Any]:
    """Publish what the checkout `root` holds, once; the same content again changes nothing.

    Args:
        params: where to publish.
        parameters: the whole resolved params.yaml as plain values, for provenance and card.
        root: the checkout.
        dry_run: build everything, touch no target, write no receipt.
        kind: what is released.

    Returns:
        The receipt, as written to reports/publish.json: target, folder or repository, commit, tag, url,
        pull_request, unchanged, and the SHA-256 of every file. Without a tag nothing is released: the pull request
        waits for review.

    Raises:
        GateRejected: the gate said no; nothing is touched.
        PublishError: nothing, or nothing new, was published; the message says what the target looks like now.
        InputError: a file is not what its stage wrote.
    """
    subject = kind.subject
    require_accepted(read_json(root / subject.gate, f"dvc repro {subject.stages['gate']}"))
    entry = entry_of(check(dict(parameters)), kind.name)
    released = Path(entry.gate.released)
    files = subject.judged(released, root) | {str(path): root / path for path in (subject.gate, LOCK)}
    with held(files, root / artifacts.RUNS) as (copies, hashes):
        release = _judged_release(params, parameters, (root, copies), hashes, entry)
        if dry_run:
            return _receipt(params, release, unchanged=None)
        receipt = _send(params, release, root)
    write_json(root / subject.receipt, receipt)
    return receipt


def _judged_release(
    params: PublishParams, parameters: Mapping[str, Any], places: tuple[Path, Path], hashes: Hashes, entry: Entry
) -> Release:
    """The release made of the copies, if they are what was judged, and would be accepted again."""
    (root, copies), kind = places, kind_of(entry)
    subject, task = kind.subject, part_of(entry, "scores")
    require_judged(subject.stages["gate"], root, copies)
    gate = read_json(copies / subject.gate, f"dvc repro {subject.stages['gate']}")
    require_accepted(gate)
    require_consistent(gate, subject)
    judged = {name: sha256 for name, sha256 in hashes.items() if name not in (str(subject.gate), str(LOCK))}
    require_same_bytes(gate, judged, parameters, subject)
    require_same_decision(gate, decide_again(task, judged, copies), subject)
    return build_release(params, parameters, gate, places, kind)


def _send(params: PublishParams, release: Release, root: Path) -> dict[str, Any]:
    """Make the target hold the release; returns the receipt."""
    if params.target == "local":
        changed = write_folder(release, root / params.folder)
        return _receipt(params, release, unchanged=not changed)
    from tasks.release.hub.transaction import release_on_hub

    done = release_on_hub(release, str(params.repository), private=params.private, review=params.review)
    return _receipt(params, release, unchanged=done.unchanged, done=done)


def build_release(
    params: PublishParams,
    parameters: Mapping[str, Any],
    gate: Mapping[str, Any],
    places: tuple[Path, Path],
    kind: Kind = OF_QUESTIONS,
) -> Release:
    """All files of the release, card and provenance included.

    Args:
        params: where to publish.
        parameters: the whole resolved params.yaml as plain values.
        gate: the verdict.
        places: the checkout, whose code is stated, and the copies of its files, which all else comes from.
        kind: what is released.
    """
    (root, copies), subject = places, kind.subject
    metrics = read_json(copies / subject.metrics, f"dvc repro {subject.stages['evaluate']}")
    config = read_json(copies / subject.model / "config.json", f"dvc repro {subject.stages['finetune']}")
    origin = provenance(parameters, copies, subject, root)
    _check_tokenizer(origin["model"] or {}, copies)
    entry = entry_of(check(dict(parameters)), kind.name)
    cards: CardTask = part_of(entry, "card")
    card = cards.card(
        CardFacts(
            name=release_name(params),
            license=params.license,
            language=params.language,
            parameters=origin["parameters"],
            metrics=metrics,
            gate=gate,
            config=config,
            provenance=origin,
            data_name=params.data_name,
            examples=params.examples,
        )
    )
    figures = metrics if params.examples else cards.released_metrics(metrics)
    texts = {CARD: card, PROVENANCE: _json(origin), METRICS: _json(figures), SCORES: _scores(entry, subject, copies)}
    return gather(copies, texts, subject, examples=params.examples)


def _scores(entry: Entry, subject: Subject, copies: Path) -> str:
    """scores.json, counted from the predictions and the examples that they answer."""
    task: ScoresTask[Any, Any, Any] = part_of(entry, "scores")
    examples = task.read_all(copies)
    return scores_json(task, examples, task.read_predictions(copies / subject.predictions, examples))


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def release_name(params: PublishParams) -> str:
    """What a reader passes to from_pretrained: the repository, or "." in the folder, whose name is the user's."""
    return str(params.repository) if params.target == "hub" else "."


def _check_tokenizer(model: Mapping[str, Any], root: Path) -> None:
    path = root / artifacts.TOKENIZER / "tokenizer.json"
    trained_with = model.get("tokenizer_sha256")
    if trained_with and path.is_file() and sha256_of(path) != trained_with:
        raise PublishError(
            f"the model was trained with another tokenizer (SHA-256 {trained_with}) than {path} "
            f"({sha256_of(path)}): run `dvc repro gate`; nothing was published"
        )


def _receipt(
    params: PublishParams,
    release: Release,
    *,
    unchanged: bool | None,
    done: HubRelease | None = None,
) -> dict[str, Any]:
    place = {"folder": params.folder} if params.target == "local" else {"repository": params.repository}
    return {
        "target": params.target,
        **place,
        "commit": done.commit if done else None,
        "tag": done.tag if done else release.tag,
        "url": done.url if done else None,
        "pull_request": done.pull_request if done else None,
        "unchanged": unchanged,
        "files": release.hashes(),
    }


def tell(receipt: Mapping[str, Any], dry_run: bool, seconds: float) -> None:
    """Print what publishing did, or would do."""
    place = receipt.get("folder") or receipt["url"] or receipt["repository"]
    if dry_run:
        print(f"publish (dry run): would make {place} hold these {len(receipt['files'])} files as {receipt['tag']}:")
        for name, sha256 in receipt["files"].items():
            print(f"  {sha256[:12]}  {name}")
        return
    done = "unchanged" if receipt["unchanged"] else "published" if receipt["tag"] else "opened for review"
    tag = receipt["tag"] or "nothing is released before it is merged and publish runs again"
    print(f"publish: {place} {done}, {len(receipt['files'])} files, {tag}, {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish a gated model to the folder or repository of its entry.")
    parser.add_argument("name", nargs="?", default=QUESTIONS_ENTRY, help="the entry, or what its stage is called")
    parser.add_argument("--dry-run", action="store_true", help="show what would be published; touch nothing")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    params = load_params()
    entry = entry_of(params, arguments.name)
    receipt = publish(entry.publish, parameter_values(params), dry_run=arguments.dry_run, kind=kind_of(entry))
    tell(receipt, arguments.dry_run, time.perf_counter() - started_at)


if __name__ == "__main__":
    run_main(main)
