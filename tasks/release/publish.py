"""Publish an accepted model: to a folder in Hub layout, or to a Hub repository in one commit.

    python -m tasks.release.publish [NAME] [--dry-run]

Only models that passed the gate are published. All files that the gate evaluated are read once, into private copies.
The gate decides again on these copies, its verdict must equal the recorded one, and the copies are published. The Hub
token comes only from the environment variable HF_TOKEN.
"""

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ipu_model.core.files import format_json, sha256_of, write_json
from ipu_model.core.units import shorten
from tasks.downstream.card import CardFacts
from tasks.downstream.gate.exports import list_model_files
from tasks.downstream.gate.gate import CODE, JUDGED, decide_on_files
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.gate.subject import (
    RELEASED,
    SEEDS,
    Hashes,
    ReleaseSubject,
    copy_privately,
    expand_plan,
    hash_files,
    make_subject,
)
from tasks.downstream.gate.verdict_text import EXPORTS
from tasks.downstream.inference.predict_released import choose_release, read_recorded_scores, write_released
from tasks.downstream.kind import kind_of
from tasks.params.downstream import UNCOMPARED
from tasks.params.entries import Entry, find_entry, only_entry
from tasks.params.schema import Params, load_params, parameter_values, validate_params
from tasks.params.strict_yaml import value_at
from tasks.plan.code_state import project_of
from tasks.plan.dvc_records import LOCK, verify_gate
from tasks.plan.main import run_main
from tasks.plan.named_files import check_output_folders
from tasks.plan.plan_file import PARAMS_FILE, differences, read_locked_stages
from tasks.release.fetch import list_folder_releases
from tasks.release.names import FolderReleases
from tasks.release.provenance import StageRuns, describe_changes, hash_of, provenance, read_json, stage_runs
from tasks.release.release import (
    CARD,
    METRICS,
    PREFERRED,
    PROVENANCE,
    SCORES,
    SETTINGS,
    STAGE_RUNS,
    WEIGHTS,
    ComparedRelease,
    Release,
    build_release,
    read_compared,
    require_origin,
    resolve_origin,
    was_fetched,
    write_folder,
)
from tasks.release.signing import Signer, open_signer
from tasks.stage import artifacts
from tasks.stage.errors import GateRejected, PublishError

SHOWN = 5
ABSENT = "(not stated)"


@dataclass(frozen=True)
class Publication:
    """Release of an entry's model and its target."""

    entry: Entry
    params: Params
    parameters: Mapping[str, Any]
    """The same as plain values."""
    subject: ReleaseSubject
    root: Path
    made_by: StageRuns
    """Run that produced the outs of each stage."""

    @property
    def destination(self) -> dict[str, str | None]:
        """Folder or repository, as in receipts."""
        target = self.entry.params.publish
        return {"repository": target.repository} if self.on_hub else {"folder": target.folder}

    @property
    def on_hub(self) -> bool:
        """True for a repository, False for a folder."""
        return self.params.publish.target == "hub"

    @property
    def title(self) -> str:
        """Title of the release: NAME of published/NAME or user/NAME, otherwise the entry's name.

        Any other folder is a private path, which a release does not state. The checkout of a run has paths such as
        ../../../published/NAME.
        """
        (target,) = (PurePosixPath(str(name)) for name in self.destination.values())
        return target.name if self.on_hub or target.parent.name == artifacts.RELEASES.name else self.entry.name

    def build(
        self,
        gate: Mapping[str, Any],
        copies: Path,
        signer: Signer | None = None,
        compared: ComparedRelease | None = None,
    ) -> Release:
        """Return all files of the release, including card and provenance, from copies of the checkout's files."""
        subject, examples = self.subject, self.params.publish.examples
        metrics = read_json(copies / subject.metrics, f"dvc repro {subject.entry.stage('evaluate')}")
        config = read_json(copies / subject.model / "config.json", f"dvc repro {subject.entry.stage('finetune')}")
        origin = provenance(self.parameters, copies, subject, self.root)
        if changes := describe_changes(origin, self.root):
            print(f"publish: {changes}", flush=True)
        _require_tokenizer(origin, copies / artifacts.TOKENIZER / "tokenizer.json")
        terms = resolve_origin(self.params, (origin["base_model"] or {}).get("origin"))
        require_origin(self.params, terms)
        kind = kind_of(self.entry)
        scored, answered = kind.scores(self.entry).read_all(copies)
        files, preferred = list_model_files(
            scored, gate, metrics, copies / subject.model / WEIGHTS, self.params.publish.prefer
        )
        facts = CardFacts(
            entry=self.entry,
            name=str(self.destination["repository"]) if self.on_hub else ".",
            license=terms.license,
            language=terms.language,
            parameters=origin["parameters"],
            metrics=metrics,
            gate=gate,
            config=config,
            provenance=origin,
            data_name=self.entry.params.publish.data_name,
            examples=examples,
            title=self.title,
            base_model=terms.base_model,
            base_name=self.params.publish.base_name,
            files=files,
            preferred=preferred,
        )
        # The tag covers this hash, and not the card, which states the time of one training.
        origin["card_sha256"] = hash_of(kind.card(facts))
        measured = {name: copies / artifacts.measurements_file(name) for name in subject.trainings}
        costs = {name: read_json(path, "podium run") for name, path in measured.items() if path.is_file()}
        speed = copies / artifacts.measurements_file(self.entry.name, "export")
        times = read_json(speed, "podium run") if speed.is_file() else {}
        card = kind.card(replace(facts, measured=costs, speed=times))
        texts = {
            CARD: card,
            PROVENANCE: format_json(origin),
            STAGE_RUNS: format_json(self.made_by),
            METRICS: format_json(metrics if examples else scored.released_metrics(metrics)),
            SCORES: scores_json(scored, answered, scored.read_predictions(copies / subject.predictions, answered)),
        }
        if settings := scored.settings(metrics) | ({PREFERRED: preferred} if preferred else {}):
            texts[SETTINGS] = format_json(settings)
            texts["config.json"] = format_json({**config, "podium": settings})
        accepted = [file["name"] for file in files if file["accepted"] and file["name"] != WEIGHTS]
        release = build_release(copies, texts, subject, accepted, examples=examples)
        statement = attest(origin, gate, metrics, compared, release, copies) if signer else {}
        if statement and preferred:
            statement[PREFERRED] = preferred
        return replace(release, signer=signer, statement=statement)

    def send(self, release: Release, compared: ComparedRelease | None) -> dict[str, Any]:
        """Publish the release in place of the one it was compared with; return the receipt."""
        if not self.on_hub:
            folder = self.root / str(self.destination["folder"])
            changed = write_folder(release, folder, compared, FolderReleases(folder).named_release())
            return self.receipt(release, unchanged=not changed)
        from tasks.release.hub.transaction import release_on_hub

        how, repository = self.params.publish, str(self.destination["repository"])
        done = release_on_hub(release, repository, private=how.private, review=how.review, compared=compared)
        return self.receipt(release, **asdict(done))

    def receipt(self, release: Release, **done: Any) -> dict[str, Any]:
        """Return the receipt of a release or of a dry run; `done` has the known fields of a HubRelease."""
        return {
            "target": self.params.publish.target,
            **self.destination,
            **{"commit": None, "tag": release.tag, "url": None, "pull_request": None, "unchanged": None, **done},
            "files": release.content(),
            "stages": self.made_by,
        }


def _require_tokenizer(origin: Mapping[str, Any], tokenizer: Path) -> None:
    trained_with = origin["model"].get("tokenizer_sha256") if origin["model"] and tokenizer.is_file() else None
    if trained_with and sha256_of(tokenizer) != trained_with:
        raise PublishError(
            f"the model was trained with another tokenizer (SHA-256 {trained_with}) than {tokenizer} "
            f"({sha256_of(tokenizer)}): run the gate again; nothing was published"
        )


def attest(
    origin: Mapping[str, Any],
    gate: Mapping[str, Any],
    metrics: Mapping[str, Any],
    compared: ComparedRelease | None,
    release: Release,
    copies: Path,
) -> dict[str, Any]:
    """Return the predicate of attestation.json: the verdict on the weights, and what they were built from.

    It has only values that provenance, metrics and card of a release may state: no path, host, user or time.
    """
    scores = gate["metrics"]
    return {
        "weights_sha256": release.files[WEIGHTS].sha256,
        "verdict": {name: gate[name] for name in ("accepted", "reasons", "checks")},
        "scores": {
            name: {"value": value, "interval": [metrics.get(f"{name}_{end}") for end in ("low", "high")]}
            for name, value in scores.items()
        },
        "exports": gate.get(EXPORTS, {}),
        "compared_with": asdict(compared) if compared else None,
        "compared_scores_sha256": {
            Path(name).name: sha256
            for name, sha256 in gate[JUDGED].items()
            if name.startswith(f"{RELEASED}/") and sha256 is not None
        },
        "parameters": origin["parameters"],
        "parameters_sha256": origin["parameters_sha256"],
        "stages_sha256": origin["stages_sha256"],
        "dvc_lock_sha256": sha256_of(copies / LOCK) if (copies / LOCK).is_file() else None,
        "code": {name: origin[name] for name in ("git", "stages_git", "code_md5")},
    }


def publish(parameters: Mapping[str, Any], name: str, root: Path = Path(), *, dry_run: bool = False) -> dict[str, Any]:
    """Publish the checkout `root`; publishing the same content again changes nothing.

    Return the receipt, as written to reports/publish-<name>.json: target, folder or repository, commit, tag, url,
    pull_request, unchanged, the SHA-256 of every file of the tag, and the run that produced the outs of each stage.
    Without a tag nothing is released: the pull request waits for review. `dry_run`: build everything, but change no
    target and write no receipt.

    Raises:
        GateRejected: the gate rejected the model; nothing was changed.
        PublishError: nothing, or nothing new, was published; the message describes the current state of the target.
        InputError: a file is not what its stage wrote.
    """
    params = validate_params(dict(parameters))
    if problems := check_output_folders(parameters, root, expand_plan(params)):
        raise PublishError("; ".join(problems))
    entry = find_entry(params, name)
    subject, signer = make_subject(entry, params), open_signer(params.publish.signing)
    gate_stage = subject.entry.stage("gate")
    gate = read_json(root / subject.gate, f"dvc repro {gate_stage}")
    if gate.get("accepted") is not True:  # there is nothing to copy
        raise _rejected("the gate rejected this model", gate)
    judged = subject.judged(entry.released, root, entry.seeds)
    behind = expand_plan(params).with_upstream([gate_stage])
    run_files = map(artifacts.stage_run_file, behind)
    measured = [*map(artifacts.measurements_file, subject.trainings), artifacts.measurements_file(name, "export")]
    read = (subject.gate, artifacts.metrics_file(name, "predict"), LOCK, *run_files, *measured)
    records = {str(path): root / path for path in read}
    with copy_privately({**judged, **records}, root / artifacts.RUNS) as (copies, hashes):
        verify_gate(gate_stage, root, copies)
        require_same_parameters(params, subject, copies / LOCK)
        recorded = read_json(copies / subject.gate, f"dvc repro {gate_stage}")
        gate = verify_verdict(recorded, entry, subject, {name: hashes[name] for name in judged}, copies)
        publication = Publication(entry, params, parameters, subject, root, stage_runs(behind, copies))
        compared = read_compared(copies / RELEASED) if entry.fetches_released else None
        if compared is not None and not was_fetched(copies / RELEASED) and not publication.on_hub:
            files = {name: copies / name for name in judged}
            gate = compare_here(entry, subject, files, copies, root)
            compared = read_compared(copies / RELEASED)
        release = publication.build(gate, copies, signer, compared)
        if dry_run:
            return publication.receipt(release)
        receipt = publication.send(release, compared)
    write_json(root / artifacts.receipt_file(subject.name), receipt)
    return receipt


def require_same_parameters(params: Params, subject: ReleaseSubject, lock: Path) -> None:
    """Require that all upstream stages of the gate ran with the current parameters, according to dvc.lock.

    Raises:
        PublishError: a stage ran with other parameters, or did not run.
    """
    now, plan, gate = parameter_values(params), expand_plan(params), subject.entry.stage("gate")
    stages, differing = read_locked_stages(lock), list[str]()
    for name in plan.with_upstream([gate]):
        if name not in stages:
            differing.append(f"stage {name} has not run")
            continue
        ran_with = stages[name].get("params", {}).get(PARAMS_FILE, {})
        differing += [
            f"{parameter} is {current!r}, but stage {name} ran with {recorded!r}"
            for key in plan[name].params.get(PARAMS_FILE, ())
            for parameter, recorded, current in differences(key, ran_with.get(key), value_at(now, key), ABSENT)
        ]
    if differing:
        raise PublishError(
            f"{subject.model} was built with other parameters than those in params.yaml: "
            f"{shorten(differing, SHOWN, '; ')}. Run `dvc repro {gate}`, then publish again; nothing was published"
        )


def verify_verdict(
    recorded: Mapping[str, Any], entry: Entry, subject: ReleaseSubject, hashes: Hashes, copies: Path
) -> dict[str, Any]:
    """Return the gate's verdict on copies of the evidence, whose hashes are without the verdict itself.

    The recorded verdict, that of the stage gate, is only compared with it, never trusted.

    Raises:
        GateRejected: the evidence does not support this model.
        PublishError: the recorded verdict covers other files, or differs from this one.
        InputError: the evidence is damaged.
    """
    stage, judged = subject.entry.stage("gate"), recorded.get(JUDGED)
    differing = ["it does not list the evaluated files"]
    if isinstance(judged, Mapping):
        differing = [
            f"{name} has SHA-256 {hashes.get(name) or 'none, it is missing'}, evaluated was "
            f"{judged.get(name) or 'none'}"
            for name in sorted({*judged, *hashes})
            if judged.get(name) != hashes.get(name)
        ]
    if differing:
        raise PublishError(
            f"{subject.gate} covers other files: {shorten(differing, SHOWN, '; ')}. Run `dvc repro {stage}`, then "
            "publish again; nothing was published"
        )
    released, seeds = entry.released and RELEASED, entry.seeds and SEEDS
    verdict = decide_on_files(kind_of(entry).scores(entry), subject, hashes, copies, released, seeds)
    redo = f"redo the verdict with `dvc repro --force --single-item {stage}`, then publish again"
    if not verdict["accepted"]:
        raise _rejected(f"{subject.gate} accepts the model, but the evidence does not: {redo}", verdict, "; ")
    checks = recorded.get("checks")
    known = checks if isinstance(checks, list) else []
    other = [check["name"] for check in verdict["checks"] if check not in known]
    other += [name for name in {**verdict, **recorded} if name != CODE and recorded.get(name) != verdict.get(name)]
    if other:
        raise PublishError(
            f"{subject.gate} differs from the checks of the evidence: {', '.join(other)}. One of them was changed by "
            f"hand: {redo}; nothing was published"
        )
    return verdict


def _rejected(fact: str, verdict: Mapping[str, Any], before: str = ", ") -> GateRejected:
    """Return the error for a rejected model, with the reasons of the verdict."""
    reasons = "".join(f"\n  {reason}" for reason in verdict.get("reasons") or []) or " (it gave no reason)"
    return GateRejected(f"{fact}{before}nothing was published:{reasons}")


def compare_here(
    entry: Entry, subject: ReleaseSubject, files: Mapping[str, Path], copies: Path, root: Path
) -> dict[str, Any]:
    """Return the verdict with the comparison that the gate could not make, as it did not see the folder of releases.

    Only scores that the replaced release states count: no model runs here. They are added to `files`, the copies of
    everything that the gate evaluates by name.

    Raises:
        GateRejected: the model is worse.
        PublishError: the release does not state scores of these examples.
    """
    task, folder = kind_of(entry).scores(entry), entry.params.publish.folder
    releases, sources = list_folder_releases(entry, root)
    release, _ = choose_release(releases, copies / subject.model)
    scores = None
    if release is not None:
        task, examples = task.read_all(copies)
        scores = read_recorded_scores(task, examples, sources[release.tag](SCORES))
        if scores is None:
            raise PublishError(
                f"{release.tag} in {folder} does not state scores of these {task.record}s, and the gate did not see "
                "it, so that they were not compared. Use `podium run` on a host that has this folder, or set "
                f"{entry.key('gate', 'released')}={UNCOMPARED}; nothing was published"
            )
    write_released(entry, copies / RELEASED, release, scores)
    verdict = decide_on_files(task, subject, hash_files(files), copies, RELEASED, entry.seeds and SEEDS)
    if not verdict["accepted"]:
        raise _rejected(f"the gate did not see {folder}; this model is rejected", verdict)
    return verdict


def print_receipt(receipt: Mapping[str, Any], dry_run: bool, seconds: float) -> None:
    """Print the result of publishing or of a dry run."""
    target = receipt["url"] or receipt.get("repository") or os.path.relpath(receipt["folder"], project_of(Path()))
    if dry_run:
        print(f"publish (dry run): would publish these {len(receipt['files'])} files to {target} as {receipt['tag']}:")
        for name, sha256 in receipt["files"].items():
            print(f"  {sha256[:12]}  {name}")
        return
    done = "unchanged" if receipt["unchanged"] else "published" if receipt["tag"] else "opened for review"
    tag = receipt["tag"] or "to release it, merge the pull request and publish again"
    print(f"publish: {target} {done}, {tag}, {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish a gated model to the folder or repository of its entry.")
    parser.add_argument("name", nargs="?", help="entry; optional if there is only one")
    parser.add_argument("--dry-run", action="store_true", help="show what would be published, change nothing")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    params = load_params()
    entry = find_entry(params, arguments.name) if arguments.name else only_entry(params)
    receipt = publish(parameter_values(params), entry.name, dry_run=arguments.dry_run)
    print_receipt(receipt, arguments.dry_run, time.perf_counter() - started_at)


if __name__ == "__main__":
    run_main(main)
