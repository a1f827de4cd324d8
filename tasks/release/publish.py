"""Publish the gated model: to a folder in Hub layout, or to a Hub repository in one commit.

    python -m tasks.release.publish [NAME] [--dry-run]

Nothing is published that did not pass. All that the gate judged is read once, into copies of our own: the gate decides
again on them, the recorded verdict must say the same, and they are what is sent. The Hub token comes from the
environment variable HF_TOKEN only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ipu_model.files import json_text, sha256_of, write_json
from tasks.downstream.entries import Entry, entry_of, only_entry
from tasks.downstream.judging.gate import CODE, JUDGED, judge
from tasks.downstream.judging.released import scores_json
from tasks.downstream.scoring.scores import ScoresTask
from tasks.downstream.task import about, part_of
from tasks.project import artifacts
from tasks.project.composing import compose
from tasks.project.dvc_records import LOCK, require_judged
from tasks.project.errors import GateRejected, PublishError
from tasks.project.given import check_written
from tasks.project.main import run_main
from tasks.project.param_downstream import EntryPublishParams
from tasks.project.param_sections import PublishParams
from tasks.project.params import Params, check, load_params, parameter_values
from tasks.project.plan_file import COMPOSED_FILE, PARAMS_FILE, differences, stages_of, value_at
from tasks.release.card import CardFacts, CardTask
from tasks.release.origin import require_origin, resolve_origin
from tasks.release.provenance import StageRuns, changes_since, provenance, read_json, stage_runs
from tasks.release.release import (
    CARD,
    METRICS,
    PROVENANCE,
    SCORES,
    SETTINGS,
    STAGE_RUNS,
    ComparedRelease,
    Release,
    gather,
    read_compared,
    write_folder,
)
from tasks.release.release_subject import RELEASED, SEEDS, Hashes, Subject, copy_privately, plan_of, subject_of

if TYPE_CHECKING:
    from tasks.release.hub.transaction import HubRelease

SHOWN = 5
"""Differences that an error names."""
ABSENT = "(not stated)"
"""In place of a value of which there is none."""


@dataclass(frozen=True)
class Wanted:
    """The release of an entry's model: what it is of, and where it goes."""

    entry: Entry
    params: Params
    subject: Subject

    @property
    def how(self) -> PublishParams:
        """The section `publish`, for all releases."""
        return self.params.publish

    @property
    def target(self) -> EntryPublishParams:
        """Folder and repository of this release."""
        return self.entry.params.publish


def publish(parameters: Mapping[str, Any], name: str, root: Path = Path(), *, dry_run: bool = False) -> dict[str, Any]:
    """Publish what the checkout `root` holds, once; the same content again changes nothing.

    Args:
        parameters: the whole resolved params.yaml as plain values.
        name: of the entry.
        root: the checkout.
        dry_run: build everything, touch no target, write no receipt.

    Returns:
        The receipt, as written to reports/publish-<name>.json: target, folder or repository, commit, tag, url,
        pull_request, unchanged, the SHA-256 of every file that the tag stands for, and the run that made each stage.
        Without a tag nothing is released: the pull request
        waits for review.

    Raises:
        GateRejected: the gate said no; nothing is touched.
        PublishError: nothing, or nothing new, was published; the message says what the target looks like now.
        InputError: a file is not what its stage wrote.
    """
    params = check(dict(parameters))
    if problems := check_written(parameters, root, plan_of(params)):
        raise PublishError("; ".join(problems))
    entry = entry_of(params, name)
    subject = subject_of(about(entry), params)
    told = Wanted(entry, params, subject)
    gate_stage = subject.stages["gate"]
    require_accepted(read_json(root / subject.gate, f"dvc repro {gate_stage}"))  # else there is nothing to copy
    judged = subject.judged(entry.released, root, entry.seeds)
    behind = plan_of(params).behind([gate_stage])
    made = map(artifacts.stage_run_file, behind)
    records = {str(path): root / path for path in (subject.gate, subject.prediction, LOCK, *made)}
    with copy_privately({**judged, **records}, root / artifacts.RUNS) as (copies, hashes):
        require_judged(gate_stage, root, copies)
        require_same_parameters(params, subject, copies / LOCK)
        recorded = read_json(copies / subject.gate, f"dvc repro {gate_stage}")
        gate = decide_again(recorded, entry, subject, {name: hashes[name] for name in judged}, copies)
        made_by = stage_runs(behind, copies)
        release = build_release(told, parameters, gate, made_by, (root, copies))
        if dry_run:
            return _receipt(told, release, made_by, unchanged=None)
        compared = read_compared(copies / RELEASED) if entry.fetches_released else None
        receipt = _send(told, release, made_by, root, compared)
    write_json(root / subject.receipt, receipt)
    return receipt


def require_accepted(gate: Mapping[str, Any]) -> None:
    """The verdict must be positive.

    Raises:
        GateRejected: it is not; the message holds its reasons.
    """
    if gate.get("accepted") is not True:
        said = "".join(f"\n  {reason}" for reason in gate.get("reasons") or []) or " (it gave no reason)"
        raise GateRejected(f"the gate rejected this model, nothing was published:{said}")


def require_same_parameters(params: Params, subject: Subject, lock: Path) -> None:
    """All stages behind the gate must have run with the parameters of now, as dvc.lock has them.

    Args:
        params: of now.
        subject: what is to be published.
        lock: dvc.lock.

    Raises:
        PublishError: one did not.
    """
    values = {PARAMS_FILE: parameter_values(params), COMPOSED_FILE: compose(params)}
    plan, gate, stages, differing = plan_of(params), subject.stages["gate"], stages_of(lock), list[str]()
    for name in plan.behind([gate]):
        if name not in stages:
            differing.append(f"stage {name} has not run")
            continue
        ran_with = stages[name].get("params", {})
        differing += [
            f"{place} is {here!r}, stage {name} ran with {stated!r}"
            for file, now in values.items()
            for key in plan[name].params.get(file, ())
            for place, stated, here in differences(key, ran_with.get(file, {}).get(key), value_at(now, key), ABSENT)
        ]
    if differing:
        raise PublishError(
            f"{subject.model} was made with other parameters than params.yaml states now: {_some(differing)}. Run "
            f"`dvc repro {gate}`, then publish again; nothing was published"
        )


def decide_again(
    recorded: Mapping[str, Any], entry: Entry, subject: Subject, hashes: Hashes, copies: Path
) -> dict[str, Any]:
    """Return the gate's verdict on copies of the evidence; the recorded one is compared with it, and never trusted.

    Args:
        recorded: the verdict that the gate's stage wrote.
        entry: whose model it is.
        subject: what is to be published.
        hashes: of the copies, without the verdict itself.
        copies: of all that is judged.

    Raises:
        GateRejected: the evidence speaks against this model.
        PublishError: the recorded verdict is about other files, or says something else.
        InputError: the evidence is damaged.
    """
    stage = subject.stages["gate"]
    if differing := _other_files(recorded.get(JUDGED), hashes):
        raise PublishError(
            f"{subject.gate} is about other files: {_some(differing)}. Run `dvc repro {stage}`, then publish again; "
            "nothing was published"
        )
    decision, verdict = judge(part_of(entry, "scores"), subject, hashes, copies, RELEASED, entry.seeds and SEEDS)
    anew = f"make the verdict anew with `dvc repro --force --single-item {stage}`, then publish again; nothing was "
    if not decision.accepted:
        said = "".join(f"\n  {reason}" for reason in decision.reasons)
        raise GateRejected(f"{subject.gate} says accepted, the evidence does not. {anew}published:{said}")
    if other := _other_statements(recorded, verdict):
        raise PublishError(
            f"{subject.gate} states other checks than the evidence gives: {', '.join(other)}. Somebody changed one of "
            f"them: {anew}published"
        )
    return verdict


def _other_files(judged: Any, hashes: Hashes) -> list[str]:
    """How the files differ from those that a verdict was about, in words."""
    if not isinstance(judged, Mapping):
        return ["it does not say what it judged"]
    return [
        f"{name} has SHA-256 {hashes.get(name) or 'none, it is not there'}, judged was {judged.get(name) or 'none'}"
        for name in sorted({*judged, *hashes})
        if judged.get(name) != hashes.get(name)
    ]


def _other_statements(recorded: Mapping[str, Any], verdict: Mapping[str, Any]) -> list[str]:
    """Names of the checks, and of all else, of which a recorded verdict does not say what the gate says now."""
    names = [name for name in {**verdict, **recorded} if name != CODE and recorded.get(name) != verdict.get(name)]
    checks = recorded.get("checks")
    known = checks if isinstance(checks, list) else []
    return [*(check["name"] for check in verdict["checks"] if check not in known), *names]


def _some(differing: Sequence[str]) -> str:
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return "; ".join(differing[:SHOWN]) + more


def _send(
    told: Wanted, release: Release, made_by: StageRuns, root: Path, compared: ComparedRelease | None
) -> dict[str, Any]:
    """Make the target hold the release, in the place of the one that was compared with; returns the receipt."""
    if told.how.target == "local":
        changed = write_folder(release, root / told.target.folder, compared)
        return _receipt(told, release, made_by, unchanged=not changed)
    from tasks.release.hub.transaction import release_on_hub

    done = release_on_hub(
        release, str(told.target.repository), private=told.how.private, review=told.how.review, compared=compared
    )
    return _receipt(told, release, made_by, unchanged=done.unchanged, done=done)


def build_release(
    told: Wanted,
    parameters: Mapping[str, Any],
    gate: Mapping[str, Any],
    made_by: StageRuns,
    places: tuple[Path, Path],
) -> Release:
    """All files of the release, card and provenance included.

    Args:
        told: what is released, and where it goes.
        parameters: the whole resolved params.yaml as plain values.
        gate: the verdict.
        made_by: the run that made each stage.
        places: the checkout, whose code is stated, and the copies of its files, which all else comes from.
    """
    (root, copies), subject, params = places, told.subject, told.how
    metrics = read_json(copies / subject.metrics, f"dvc repro {subject.stages['evaluate']}")
    config = read_json(copies / subject.model / "config.json", f"dvc repro {subject.stages['finetune']}")
    origin = provenance(parameters, copies, subject, root)
    if changes := changes_since(origin, root):
        print(f"publish: {changes}", flush=True)
    _check_tokenizer(origin["model"] or {}, copies)
    stated = resolve_origin(told.params, (origin["base_model"] or {}).get("origin"))
    require_origin(told.params, stated)
    entry = told.entry
    cards: CardTask = part_of(entry, "card")
    card = cards.card(
        CardFacts(
            entry=entry,
            name=str(told.target.repository) if told.how.target == "hub" else ".",
            license=stated.license,
            language=stated.language,
            parameters=origin["parameters"],
            metrics=metrics,
            gate=gate,
            config=config,
            provenance=origin,
            data_name=told.target.data_name,
            examples=params.examples,
            title=release_title(told),
            base_model=stated.base_model,
        )
    )
    figures = metrics if params.examples else cards.released_metrics(metrics)
    texts = {
        CARD: card,
        PROVENANCE: json_text(origin),
        STAGE_RUNS: json_text(made_by),
        METRICS: json_text(figures),
        SCORES: _scores(entry, subject, copies),
    }
    if settings := cards.settings(metrics):
        texts[SETTINGS] = json_text(settings)
    return gather(copies, texts, subject, examples=params.examples)


def _scores(entry: Entry, subject: Subject, copies: Path) -> str:
    """scores.json, counted from the predictions and the examples that they answer."""
    task: ScoresTask[Any, Any, Any] = part_of(entry, "scores")
    examples = task.read_all(copies)
    return scores_json(task, examples, task.read_predictions(copies / subject.predictions, examples))


def release_title(told: Wanted) -> str:
    """Return what people call the release: NAME of published/NAME or user/NAME, else the entry's name.

    Any other folder is a path of the user, which a release does not state. The checkout of a run names its folder from
    there: ../../../published/NAME.
    """
    place = PurePosixPath(str(told.target.repository if told.how.target == "hub" else told.target.folder))
    return place.name if told.how.target == "hub" or place.parent.name == artifacts.RELEASES.name else told.entry.name


def _check_tokenizer(model: Mapping[str, Any], root: Path) -> None:
    path = root / artifacts.TOKENIZER / "tokenizer.json"
    trained_with = model.get("tokenizer_sha256")
    if trained_with and path.is_file() and sha256_of(path) != trained_with:
        raise PublishError(
            f"the model was trained with another tokenizer (SHA-256 {trained_with}) than {path} "
            f"({sha256_of(path)}): run the gate again; nothing was published"
        )


def _receipt(
    told: Wanted,
    release: Release,
    made_by: StageRuns,
    *,
    unchanged: bool | None,
    done: HubRelease | None = None,
) -> dict[str, Any]:
    local = told.how.target == "local"
    place = {"folder": told.target.folder} if local else {"repository": told.target.repository}
    return {
        "target": told.how.target,
        **place,
        "commit": done.commit if done else None,
        "tag": done.tag if done else release.tag,
        "url": done.url if done else None,
        "pull_request": done.pull_request if done else None,
        "unchanged": unchanged,
        "files": release.content(),
        "stages": made_by,
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
    parser.add_argument("name", nargs="?", help="the entry; where there is only one, none")
    parser.add_argument("--dry-run", action="store_true", help="show what would be published; touch nothing")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    params = load_params()
    entry = entry_of(params, arguments.name) if arguments.name else only_entry(params)
    receipt = publish(parameter_values(params), entry.name, dry_run=arguments.dry_run)
    tell(receipt, arguments.dry_run, time.perf_counter() - started_at)


if __name__ == "__main__":
    run_main(main)
