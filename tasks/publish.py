"""Publish the gated model: to a folder in Hub layout, or to a Hub repository in one commit.

    python -m tasks.publish [--dry-run]

Nothing is published that did not pass: the gate's verdict must be there, be positive, and be about these very
weights and predictions. The Hub token comes from the environment variable HF_TOKEN only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tasks.card import model_card
from tasks.card_training import CardFacts
from tasks.common import artifacts
from tasks.common.errors import GateRejected, PublishError, run_main
from tasks.common.intact import require
from tasks.common.params import Params, PublishParams, load_params
from tasks.provenance import provenance, read_json, without_host_paths
from tasks.release import CARD, PROVENANCE, Release, gather, write_folder
from tasks.release_subject import QUESTIONS, Subject

if TYPE_CHECKING:
    from tasks.hub import HubRelease


def publish(
    params: PublishParams,
    parameters: Mapping[str, Any],
    root: Path = Path(),
    *,
    dry_run: bool = False,
    subject: Subject = QUESTIONS,
    write_card: Callable[[CardFacts], str] = model_card,
) -> dict[str, Any]:
    """Publish what the checkout `root` holds, once; the same content again changes nothing.

    Args:
        params: where to publish.
        parameters: the whole resolved params.yaml as plain values, for provenance and card.
        root: the checkout.
        dry_run: build everything, touch no target, write no receipt.
        subject: what is released.
        write_card: makes README.md of it.

    Returns:
        The receipt, as written to reports/publish.json: target, folder or repository, commit, tag, url,
        pull_request, unchanged, and the SHA-256 of every file. Without a tag nothing is released: the pull request
        waits for review.

    Raises:
        GateRejected: the gate said no; nothing is touched.
        PublishError: nothing, or nothing new, was published; the message says what the target looks like now.
    """
    gate = read_json(root / subject.gate, f"dvc repro {subject.stages['gate']}")
    check_gate(gate, root, subject)
    release = build_release(params, parameters, gate, root, subject, write_card)
    if dry_run:
        return _receipt(params, release, unchanged=None)
    if params.target == "local":
        changed = write_folder(release, root / params.folder)
        receipt = _receipt(params, release, unchanged=not changed)
    else:
        from tasks.hub import release_on_hub

        done = release_on_hub(release, str(params.repository), private=params.private, review=params.review)
        receipt = _receipt(params, release, unchanged=done.unchanged, done=done)
    artifacts.write_json(root / subject.receipt, receipt)
    return receipt


def check_gate(gate: Mapping[str, Any], root: Path, subject: Subject = QUESTIONS) -> None:
    """The verdict must be positive and about the files that would be published.

    Raises:
        GateRejected: the verdict is negative; the message holds its reasons.
        PublishError: the verdict is about other weights or other predictions.
    """
    if gate.get("accepted") is not True:
        reasons = "".join(f"\n  {reason}" for reason in gate.get("reasons", [])) or " (it gave no reason)"
        raise GateRejected(f"the gate rejected this model, nothing was published:{reasons}")
    judged = {
        "model_sha256": root / subject.model / "model.safetensors",
        "predictions_sha256": root / subject.predictions,
    }
    again = f"dvc repro {subject.stages['gate']}"
    for key, path in judged.items():
        if not path.is_file():
            raise PublishError(f"{path} is not there: run `{again}` first; nothing was published")
        found = artifacts.sha256_of(path)
        if gate.get(key) != found:
            raise PublishError(
                f"{subject.gate} is about another {path.name} (SHA-256 {gate.get(key)}) than {path} ({found}): "
                f"run `{again}`, then publish again; nothing was published"
            )


def build_release(
    params: PublishParams,
    parameters: Mapping[str, Any],
    gate: Mapping[str, Any],
    root: Path,
    subject: Subject = QUESTIONS,
    write_card: Callable[[CardFacts], str] = model_card,
) -> Release:
    """All files of the release, card and provenance included."""
    metrics = read_json(root / subject.metrics, f"dvc repro {subject.stages['evaluate']}")
    config = read_json(root / subject.model / "config.json", f"dvc repro {subject.stages['finetune']}")
    origin = provenance(parameters, root, subject)
    _check_tokenizer(origin["model"] or {}, root)
    card = write_card(
        CardFacts(
            name=release_name(params),
            license=params.license,
            language=params.language,
            parameters=without_host_paths(parameters),
            metrics=metrics,
            gate=gate,
            config=config,
            provenance=origin,
        )
    )
    text = json.dumps(origin, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    return gather(root, {CARD: card, PROVENANCE: text}, subject)


def release_name(params: PublishParams) -> str:
    """What a reader passes to from_pretrained: the repository, or the folder without the host's part of it."""
    if params.target == "hub":
        return str(params.repository)
    return str(without_host_paths(PurePosixPath(params.folder).as_posix()))


def _check_tokenizer(model: Mapping[str, Any], root: Path) -> None:
    path = root / artifacts.TOKENIZER / "tokenizer.json"
    trained_with = model.get("tokenizer_sha256")
    if trained_with and path.is_file() and artifacts.sha256_of(path) != trained_with:
        raise PublishError(
            f"the model was trained with another tokenizer (SHA-256 {trained_with}) than {path} "
            f"({artifacts.sha256_of(path)}): run `dvc repro gate`; nothing was published"
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


def parameter_values(params: Params) -> dict[str, Any]:
    """The checked params.yaml as plain values, keys as in the file."""
    return params.model_dump(mode="json", by_alias=True)


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
    parser = argparse.ArgumentParser(description="Publish the gated model to publish.folder or publish.repository.")
    parser.add_argument("--dry-run", action="store_true", help="show what would be published; touch nothing")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    params = load_params()
    require(str(path) for path in (artifacts.TOKENIZER, artifacts.SQUAD_MODEL, artifacts.EVALUATION))
    receipt = publish(params.publish, parameter_values(params), dry_run=arguments.dry_run)
    tell(receipt, arguments.dry_run, time.perf_counter() - started_at)


if __name__ == "__main__":
    run_main(main)
