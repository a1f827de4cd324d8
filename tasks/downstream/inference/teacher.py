"""Stage teacher: a finished model predicts the examples of its student.

    python -m tasks.downstream.inference.teacher NAME

data/teacher/NAME gets the training rows with the teacher's logits as further columns, which the fine-tuning reads, and
the teacher's scores on the development sets, with which the gate compares. The logits are computed once.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ipu_model.core.files import new_folder, sha256_of, write_json, write_text
from tasks.downstream.gate.released_scores import SCORES, scores_json
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import load_ipu_config
from tasks.downstream.inference.model import PROVENANCE, InferenceModel, find_model
from tasks.downstream.inference.predict_released import (
    describe_label_difference,
    describe_task_difference,
    predict_with,
)
from tasks.downstream.jobs.entry_jobs import build_predict_job, require_valid_rows
from tasks.downstream.jobs.labels import labels_of
from tasks.downstream.kind import kind_of
from tasks.jobs.device_job import run_device_job
from tasks.models.model_folders import download_model, import_model_folder
from tasks.params.entries import ENTRY_SECTIONS, TRAIN, Entry, entry_argument, find_entry
from tasks.params.schema import Params, load_sections
from tasks.params.strict_yaml import read_yaml, value_at
from tasks.plan.main import run_main
from tasks.rows.row_files import TeacherRecord, from_arrow, to_arrow
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import MANIFEST, read_manifest
from tasks.vocabulary.encoding import find_tokenizer_file
from tasks.vocabulary.fast_tokenizer import FastTokenizer
from tasks.vocabulary.hub_tokenizer import load_local_vocabulary

COMPARED = ("normalizer", "pre_tokenizer", "model", "post_processor")
"""Parts of tokenizer.json that decide the ids of a text."""


@dataclass(frozen=True)
class Teacher:
    """Finished model that a student learns from."""

    key: str
    """Parameter that names it, for messages."""
    model: InferenceModel
    entry: Entry
    """Task that it was fine-tuned for."""
    commit: str | None
    """Its commit on the Hub; None for a folder."""


def find_teacher(entry: Entry) -> Teacher:
    """Return the teacher of an entry.

    Raises:
        InputError: it is not a finished model, or is for another task.
    """
    distill, commit = entry.params.distill, None
    key = f"{entry.key('distill', 'teacher')}={distill.teacher}"
    if distill.repository:
        key = f"{entry.key('distill', 'repository')}={distill.repository}"
        commit, folder = download_model(
            distill.repository, distill.revision, entry.key("distill"), ("podium.json", PROVENANCE)
        )
    else:
        folder = Path(str(distill.teacher))
    run = folder.parent.parent  # of the folder models/NAME in it
    in_run = folder == run / artifacts.model_folder(folder.name)
    of_run = in_run and (run / artifacts.PARAMS).is_file() and not (folder / PROVENANCE).is_file()
    model = find_model(str(folder), run / artifacts.TOKENIZER if of_run else None)
    parameters: Any = value_at(read_yaml(run / artifacts.PARAMS), "downstream").get(folder.name) if of_run else None
    if parameters is None and not (folder / PROVENANCE).is_file():
        # Nothing states its task: the student's, with the defaults of the kind.
        parameters = {"kind": entry.kind, **entry.params.options, "rows": {}, "evaluate": {}}
    suffix = kind_of(entry).suffix
    if not any(name.endswith(suffix) for name in model.architectures):
        shown = ", ".join(model.architectures) or "a model without architectures in config.json"
        raise InputError(f"{key}: the teacher is {shown}, but {entry.kind} needs ...{suffix}. Choose another teacher")
    teacher = Teacher(key, model, infer_entry(model, run=parameters), commit)
    if difference := describe_task_difference(entry, teacher.entry):
        raise InputError(f"{key}: the teacher {difference}. Choose a teacher for the same task")
    return teacher


def require_same_labels(teacher: Teacher, labels: Sequence[str], all_known: bool = True) -> None:
    """Refuse a teacher with other classes; for the arguments see `describe_label_difference`."""
    if difference := describe_label_difference(teacher.model.labels, labels, all_known):
        raise InputError(
            f"{teacher.key}: the teacher has {difference}. Choose a teacher with the same classes in the same order, "
            "or fine-tune one on these examples"
        )


def require_same_tokenizer(teacher: Teacher, tokenizer: FastTokenizer) -> None:
    """Refuse a teacher with another tokenizer than that of the rows, which gives other ids."""
    theirs = load_local_vocabulary(teacher.model.tokenizer, True, teacher.key.partition("=")[0])
    if teacher.entry.params.reads_words:
        theirs, tokenizer = (side.with_prefix_space(True) for side in (theirs, tokenizer))
    differ = [name for name in COMPARED if theirs.values.get(name) != tokenizer.values.get(name)]
    if differ or theirs.tokens != tokenizer.tokens:
        sizes = f"{len(theirs.tokens):,} entries, this run's has {len(tokenizer.tokens):,}"
        raise InputError(
            f"{teacher.key}: the teacher has another tokenizer ({sizes}; different: {', '.join(differ) or 'order'}). "
            "Choose a teacher that was fine-tuned from the same model, or start the student from the teacher itself"
        )


def add_logits(rows: Path, logits: Path, folder: Path, weights_sha256: str) -> None:
    """Write the rows in `rows` to an existing folder, with a teacher's logits as further columns.

    Args:
        logits: prediction file for these rows.
        weights_sha256: hash of the teacher's weights.

    Raises:
        InputError: the logits do not fit the rows.
    """
    manifest = read_manifest(rows)
    taught = dataclasses.replace(manifest, teacher=TeacherRecord(weights_sha256, sha256_of(rows / MANIFEST)))
    added = taught.columns[len(manifest.columns) :]
    with pa.memory_map(str(logits)) as source:
        answers = pa.ipc.open_file(source).read_all()
        if len(answers) != manifest.sequences:
            raise InputError(f"{logits} has {len(answers)} sequences, the rows in {rows} {manifest.sequences}")
        for name in manifest.files:
            with (
                pa.memory_map(str(rows / name)) as stream,
                pa.ipc.new_file(str(folder / name), taught.schema) as writer,
            ):
                reader = pa.ipc.open_file(stream)
                for batch in map(reader.get_batch, range(reader.num_record_batches)):
                    ids = from_arrow(batch.column("feature_ids").values).reshape(len(batch), -1)
                    columns = [
                        _spread(answers.column(x.name.removeprefix("teacher_")), ids, getattr(taught, x.width))
                        for x in added
                    ]
                    writer.write_batch(pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=taught.schema))
    write_text(folder / MANIFEST, taught.to_json())


def _spread(lists: pa.ChunkedArray, ids: np.ndarray, width: int) -> pa.Array:
    """Return the values of the sequences of each row, concatenated in their order and filled up with 0 to `width`.

    Values of tokens and of sequences alike are in the order of a row, whose sequences follow each other.

    Args:
        ids: int32[R, S], number of each sequence, -1 = none.
    """
    rows = lists.take(to_arrow(ids[ids >= 0])).combine_chunks()
    counts = from_arrow(pc.list_value_length(rows))
    sizes = np.bincount(np.nonzero(ids >= 0)[0], weights=counts, minlength=len(ids))
    values = np.zeros((len(ids), width), np.float32)
    values[np.arange(width) < sizes[:, None]] = from_arrow(rows.flatten())
    return pa.FixedSizeListArray.from_arrays(to_arrow(values.reshape(-1)), type=pa.list_(pa.float32(), width))


def teach(entry: Entry, params: Params) -> str:
    """Write the outs of the stage; return a summary line.

    Raises:
        InputError: the rows are not valid, or the teacher does not fit.
        DeviceJobFailed: the teacher cannot run here.
    """
    require_valid_rows(entry)
    rows, teacher = entry.rows_folder(TRAIN), find_teacher(entry)
    require_same_labels(teacher, labels_of(entry, rows))
    require_same_tokenizer(teacher, load_local_vocabulary(artifacts.TOKENIZER, True))
    runs = artifacts.RUNS / artifacts.job_name(entry.name, "teacher")
    with new_folder(artifacts.teacher_folder(entry.name)) as folder:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            model, logits = Path(scratch, "model"), Path(scratch, "logits.arrow")
            model.mkdir()
            identity = sha256_of(find_tokenizer_file(artifacts.TOKENIZER))
            report = import_model_folder(teacher.model.folder, model, identity, teacher.key)
            job = dataclasses.replace(
                build_predict_job(entry, params, rows, logits, runs, model=model),
                executables=None,  # programs and layout are for the student
                ipu_config=load_ipu_config(teacher.model) if params.device.runtime in ("auto", "ipu") else None,
            )
            result = run_device_job(job)
            (folder / TRAIN).mkdir()
            add_logits(rows, logits, folder / TRAIN, report.weights_sha256)
        predictions = predict_with(entry, teacher.model, teacher.entry, params.device, Path())
        task, examples = kind_of(entry).scores(entry).read_all()
        write_text(folder / SCORES, scores_json(task, examples, predictions))
        record = {"weights_sha256": report.weights_sha256, "parameters": report.parameters}
        named = {"repository": entry.params.distill.repository, "commit": teacher.commit} if teacher.commit else {}
        write_json(folder / artifacts.TEACHER_RECORD, {**named, **record})
    return (
        f"{entry.name}: the teacher ({report.architecture}, {report.parameters:,} parameters) predicted "
        f"{result.sequences:,} training sequences in {result.train_seconds:.1f} s"
    )


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "model", "device", "ipu")
    entry = find_entry(params, entry_argument("Predict the examples of an entry with the teacher of its model."))
    print(teach(entry, params))


if __name__ == "__main__":
    run_main(main)
