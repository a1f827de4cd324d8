"""Reproduction of a release: its recorded code, parameters and data build the model again, in a temporary checkout."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows import dvc
from flows.dvc.session import DvcSession
from flows.runs import checkout, listing, locks
from flows.runs.environment import NO_GIT, prepare_run
from flows.runs.run_params import complete_params
from flows.runs.stopping import RunFailed, RunPaused, RunStopped, stop
from ipu_model.files import read_json, sha256_of, write_text
from tasks.downstream.card import WITHHELD
from tasks.params.schema import default_values
from tasks.params.strict_yaml import leaves, read_yaml, yaml_text
from tasks.plan.code_state import changed_code, export_revision
from tasks.plan.plan_file import read_plan
from tasks.release.provenance import hash_of, released_parameters
from tasks.release.release import METRICS, PROVENANCE, STAGE_RUNS, WEIGHTS
from tasks.stage import artifacts, streams
from tasks.stage.errors import PodiumError

COPIED = (*checkout.CODE, str(artifacts.PRESETS))
TRAININGS = ("pretrain", "finetune")


class NotReproducible(Exception):
    """The release cannot be built again here; the message says why."""


def reproduce(project: Path, release: Path, *, from_scratch: bool) -> tuple[bool, str]:
    """Build the model of a release again and compare it; return whether it is the same, and what was compared.

    If training ran on CPUs, here as there, the files must have the same bytes. On other devices the scores must be
    within the intervals of the release.

    Args:
        from_scratch: run every stage, instead of restoring those that DVC's cache or remote has.

    Raises:
        NotReproducible: code, parameters or data are missing, or a stage failed.
    """
    origin, runs = read_json(release / PROVENANCE), read_json(release / STAGE_RUNS)
    prepare_run(project, streams.note)
    folder = checkout.checkout_folder(project, f"reproduce-{hash_of(origin)[:12]}")
    with locks.hold_run(project, folder.name, streams.note):
        shutil.rmtree(folder, ignore_errors=True)  # of a killed reproduction
        try:
            [name] = origin["parameters"]["downstream"]
            values = _find_parameters(project, origin, runs, folder, name)
            _write_checkout(project, folder, origin, values, from_scratch)
            done = _run_stages(folder, name)
            return compare_model(release, folder, name, origin, values, done)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _find_parameters(
    project: Path, origin: Mapping[str, Any], runs: Mapping[str, Any], folder: Path, name: str
) -> dict[str, Any]:
    """Return the parameters of the run here that built the release; without it, those of the release if complete."""
    for run in dict.fromkeys(str(one["name"]) for one in runs.values() if one):
        source = listing.run_folder(project, run)
        if (run == listing.PROJECT or checkout.NAME.fullmatch(run)) and (source / artifacts.PARAMS).is_file():
            values = read_yaml(source / artifacts.PARAMS)
            if hash_of(_publish_parameters(values, source, name)) == origin["parameters_sha256"]:
                return checkout.rebase_paths(values, source.resolve(), folder.resolve())
    withheld = [key for key, value in leaves(origin["parameters"]) if str(value).startswith(("md5:", WITHHELD))]
    if withheld:
        raise NotReproducible(f"no run here has its parameters, and the release withholds {', '.join(withheld)}")
    return complete_params(default_values(origin["parameters"]), origin["parameters"])


def _publish_parameters(values: dict[str, Any], root: Path, name: str) -> dict[str, Any]:
    entries = values.get("downstream", {})
    return released_parameters({**values, "downstream": {name: entries[name]}}, root) if name in entries else {}


def _write_checkout(
    project: Path, folder: Path, origin: Mapping[str, Any], values: dict[str, Any], from_scratch: bool
) -> None:
    folder.mkdir(parents=True)
    revision = origin["git"]["revision"]
    if not changed_code(origin["code_md5"], project):
        for part in COPIED:
            copy = shutil.copytree if (project / part).is_dir() else shutil.copy2
            copy(project / part, folder / part)
    elif not revision or not export_revision(project, revision, COPIED, folder.resolve()):
        raise NotReproducible(f"revision {revision or 'not recorded'} of its code is not in the repository {project}")
    if changed := changed_code(origin["code_md5"], folder):
        raise NotReproducible(f"its code differed from revision {revision}: {', '.join(changed)}")
    (folder / "inputs").symlink_to((project / "inputs").resolve())
    if from_scratch:
        write_text(folder / ".dvc/config", NO_GIT)
    else:
        checkout.share_cache(project.resolve(), folder.resolve())
    write_text(folder / artifacts.PARAMS, yaml_text(values))
    words = [sys.executable, "-m", "flows", "--project", ".", "plan", "--write"]  # of the recorded code
    done = subprocess.run(
        words, cwd=folder, env=dvc.stage_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise NotReproducible(f"its code and parameters do not make a plan here: {done.stdout.strip()}")


def _run_stages(folder: Path, name: str) -> dict[str, str]:
    """Bring the stages up to scores and exported files up to date; return stage -> ran, restored or skipped."""
    plan, done = read_plan(folder), dict[str, str]()
    ends = [stage for stage in (f"evaluate@{name}", f"export@{name}") if stage in plan]
    pull = dvc.has_remote(folder)
    try:
        with stop.listen(), DvcSession(folder) as session:
            for stage in plan.with_upstream(ends):
                done[stage] = session.update(stage, lambda line: None, lambda share: None, pull=pull, single=True)
                streams.note(f"{stage} {done[stage]}", "")
    except (RunFailed, RunPaused, PodiumError) as error:
        raise NotReproducible(str(error)) from None
    except RunStopped as stopped:
        raise NotReproducible(f"interrupted before stage {stopped} ended") from None
    return done


def compare_model(
    release: Path, folder: Path, name: str, origin: Mapping[str, Any], values: dict[str, Any], done: Mapping[str, str]
) -> tuple[bool, str]:
    """Compare a release with the outs of a checkout; see `reproduce`.

    Args:
        folder: checkout in which the stages `done` ran, with these parameters.
        origin: provenance of the release.
    """
    places = {WEIGHTS: artifacts.model_folder(name), "tokenizer.json": artifacts.TOKENIZER}
    places |= {file: artifacts.exports_folder(name) for file in artifacts.EXPORT_FILES.values()}
    files = [file for file in places if (release / file).is_file()]
    built = {file: folder / place / file for file, place in places.items()}
    differing = [
        file for file in files if not built[file].is_file() or sha256_of(built[file]) != sha256_of(release / file)
    ]
    stated, scores = read_json(release / METRICS), read_json(folder / artifacts.metrics_file(name))
    names = [key for key in stated if f"{key}_low" in stated]
    outside = [key for key in names if not stated[f"{key}_low"] <= scores[key] <= stated[f"{key}_high"]]
    trainings = {one: read_json(folder / artifacts.METRICS / f"{one}.json") for one in origin["training"]}
    on_cpu = all(one["runtime"] == "cpu" for one in (*origin["training"].values(), *trainings.values()))
    shown = ", ".join(
        f"{key} {scores[key]:g} (stated {stated[key]:g}, {stated[f'{key}_low']:g} to {stated[f'{key}_high']:g})"
        for key in names
    )
    restored = [stage for stage, how in done.items() if how == "restored"]
    how = f"{len(done) - len(restored)} stages ran" + (f", {len(restored)} were restored from DVC" if restored else "")
    if any(stage.partition("@")[0] in TRAININGS for stage in restored):
        how += ", among them a training: --from-scratch runs it again"
    if not differing and not outside:
        return True, f"reproduced: same bytes of {', '.join(files)}; {shown}; {how}"
    if not on_cpu and not outside:
        return True, f"reproduced within intervals: {shown}; bytes of {', '.join(differing)} differ; {how}"
    reasons = [f"{file} has other bytes" for file in differing] + [f"{key} is outside its interval" for key in outside]
    reasons += _explain(origin, _publish_parameters(values, folder, name), trainings)
    return False, f"not reproduced: {'; '.join(reasons)}; {shown}; {how}"


def _explain(origin: Mapping[str, Any], here: Mapping[str, Any], trainings: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs from the recorded training: parameters, hashes of data, and packages."""
    now = dict(leaves(here))
    for key, value in leaves(origin["parameters"]):
        if now.get(key) not in (value, WITHHELD):  # withheld: only the gate reads it, which did not run
            yield f"{key} is {json.dumps(now.get(key))} here, recorded is {json.dumps(value)}"
    for name, one in origin["training"].items():
        for package, version in one.get("versions", {}).items():
            if (found := trainings[name].get("versions", {}).get(package)) != version:
                yield f"{name} ran with {package} {found}, recorded is {version}"
