"""Stage predict_released: scores of the latest released model on the development sets of an entry.

python -m tasks.downstream.inference.predict_released NAME

If its release has scores for every example, they are used. Otherwise the model predicts the examples here, with its own
tokenizer, rows and settings. A model that is already published is compared with the release before it, not with itself.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ipu_model.core.files import link_or_copy, new_folder, read_json, sha256_of, write_json, write_text
from tasks.downstream.gate.released_scores import SCORES, read_scores, scores_json
from tasks.downstream.inference.entry import infer_entry as entry_of_model
from tasks.downstream.inference.fetched_releases import STATED_SCORES, FetchedRelease, read_fetched, verify_release
from tasks.downstream.inference.job import InferenceOptions, run_inference, scratch_checkout
from tasks.downstream.inference.model import CONFIG, WEIGHTS, InferenceModel, find_model
from tasks.downstream.kind import kind_of
from tasks.downstream.scoring.scores import Scores
from tasks.params.downstream import UNCOMPARED
from tasks.params.entries import ENTRY_SECTIONS, Entry, entry_argument, find_entry
from tasks.params.schema import DeviceParams, load_sections
from tasks.params.sections import RuntimeSpec
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError


def predict_released(entry: Entry, device: DeviceParams, root: Path = Path()) -> str:
    """Write the scores of the released model, if there is one; return a summary line.

    Raises:
        InputError: the fetched release is damaged, or its model is for another task.
        DeviceJobFailed: the model cannot run here.
    """
    name, folder = entry.name, root / artifacts.FETCHED / entry.name
    release, itself = choose_release(read_fetched(folder), root / artifacts.model_folder(name))
    out = root / artifacts.released_scores(name)
    said = f"{name}: this model is already released as {itself.title}; " if itself else f"{name}: "
    if release is None:
        write_released(entry, out, fetched=folder.is_dir())
        return f"{said}no released model to compare with"
    verify_release(release, folder)
    (task, examples), where = kind_of(entry).scores(entry).read_all(root), folder / release.tag
    count = sum(len(task.keys(dev_set)) for dev_set in examples.values())
    text = read_recorded_scores(task, examples, where / STATED_SCORES)
    predicted = text is None
    if text is not None:
        how = f"has recorded scores for all {count:,} {task.record}s; using them"
    else:
        predictions = predict_dev_sets(entry, where, device, root)
        text = scores_json(task, examples, predictions)
        how = f"predicted all {count:,} {task.record}s, because its recorded scores do not cover them"
    write_released(entry, out, release, text, predicted=predicted)
    return f"{said}{release.title} {how}"


def choose_release(
    releases: Sequence[FetchedRelease], model: Path
) -> tuple[FetchedRelease | None, FetchedRelease | None]:
    """Return the newest release of another model than `model`, and the newest release if it is `model` itself."""
    weights = sha256_of(model / WEIGHTS)
    others = [release for release in releases if release.weights != weights]
    itself = releases[0] if releases and releases[0].weights == weights else None
    return (others[0] if others else None), itself


def read_recorded_scores(task: Scores, examples: Mapping[str, object], path: Path) -> str | None:
    """Return scores.json of a release if it covers all these examples, else None."""
    try:
        scores = read_scores(task, path)
    except (FileNotFoundError, InputError):  # a release without scores, or with those of other data
        return None
    whole = all(set(task.keys(dev_set)) <= set(scores[split]) for split, dev_set in examples.items())
    return path.read_text(encoding="utf-8") if whole else None


def predict_dev_sets(entry: Entry, folder: Path, device: DeviceParams, root: Path) -> dict[str, Sequence[object]]:
    """Return the predictions of a released model for the development sets of an entry.

    Raises:
        InputError: the model is for another task or has other classes.
        DeviceJobFailed: the model cannot run here.
    """
    model = find_model(str(folder))
    model_entry = entry_of_model(model)
    ours = InferenceModel(root, root, 0, read_json(root / artifacts.model_folder(entry.name) / CONFIG))
    require_comparable(entry, model, ours.labels)
    return predict_with(entry, model, model_entry, device, root)


def predict_with(
    entry: Entry, model: InferenceModel, model_entry: Entry, device: DeviceParams, root: Path
) -> dict[str, Sequence[object]]:
    """Return the predictions of a model, fine-tuned for `model_entry`, for the development sets of another entry.

    Raises:
        DeviceJobFailed: the model cannot run here.
    """
    model = model.with_absolute_paths()
    applied = kind_of(model_entry).inference(model_entry)
    scores = applied.scores
    files = {split: entry.examples_file(split, root).resolve() for split in entry.development}
    how = InferenceOptions(RuntimeSpec(device.runtime, device.precision), device.micro_batch_size, print)
    predictions: dict[str, Sequence[object]] = {}
    with scratch_checkout(model_entry, model):
        for split, file in files.items():
            link_or_copy(file, model_entry.examples_file(split))
            run_inference(kind_of(model_entry).encoder(model_entry), model, split, how)
            predictions[split] = scores.predictions(scores.answer(*scores.read_split(split)))
    return predictions


def require_comparable(
    entry: Entry, released: InferenceModel, labels: Sequence[str] = (), all_known: bool = True
) -> None:
    """Refuse a released model for another task or with other classes than those of an entry.

    Args:
        released: its folder needs only config.json and what a release records of its task.
        labels: classes of the entry, in order; empty: not compared.
        all_known: the entry has no other classes.
    """
    said = describe_task_difference(entry, entry_of_model(released))
    if not said and (difference := describe_label_difference(released.labels, labels, all_known)):
        said = f"has {difference}"
    if said:
        raise InputError(
            f"the released model {released.folder.name} {said}; they cannot be compared. Set {entry.key('publish')} to "
            f"another target, or {entry.key('gate', 'released')}={UNCOMPARED} to replace it without a comparison"
        )


def describe_label_difference(theirs: Sequence[str], labels: Sequence[str], all_known: bool) -> str:
    """Return how the classes of a model differ from those of examples, after "has"; empty: they do not.

    Args:
        labels: classes of the examples, in order; empty: the task has none.
        all_known: the examples have no other classes.
    """
    same = tuple(theirs) == tuple(labels) if all_known else set(labels) <= set(theirs)
    if not labels or len(labels) == len(theirs) == 1 or same:
        return ""
    return f"the classes {', '.join(theirs)}, the examples {', '.join(labels)}"


def describe_task_difference(entry: Entry, model_entry: Entry) -> str:
    """Return how the task of a model, `model_entry`, differs from that of `entry`, after "the model"; "" if not."""
    asked, model_task = (
        ", ".join(f"{key} {value}" for key, value in {"kind": side.kind, **side.params.options}.items())
        for side in (entry, model_entry)
    )
    return "" if asked == model_task else f"is for {model_task}, this entry for {asked}"


def write_released(
    entry: Entry,
    out: Path,
    release: FetchedRelease | None = None,
    scores: str | None = None,
    *,
    fetched: bool = True,
    predicted: bool = False,
) -> None:
    """Write the scores of the released model into a folder, and a record of where they are from.

    Args:
        release: None: there is no other model to compare with.
        fetched: releases were fetched; otherwise it is not known whether there are any.
        predicted: the model predicted the examples; otherwise the scores are those of its release.
    """
    about = (
        None if release is None else {"tag": release.tag, "repository": release.repository, "commit": release.commit}
    )
    weights = None if release is None else release.weights
    values = {"release": about, "weights": weights, "fetched": fetched, "predicted": predicted}
    with new_folder(out) as folder:
        write_json(folder / artifacts.RELEASED_RECORD, values)
        if scores is not None:
            write_text(folder / entry.params.released_below / SCORES, scores)


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "device")
    entry = find_entry(params, entry_argument("Score the released model on the development sets of an entry."))
    print(predict_released(entry, params.device))


if __name__ == "__main__":
    run_main(main)
