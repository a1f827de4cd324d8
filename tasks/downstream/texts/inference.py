"""Inference for texts: read them from a file, with or without labels, and write classes or values as records."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.inference.job import COLUMN, INPUT, UNKNOWN_TO_MODEL, Inference
from tasks.downstream.scoring.metrics import Array
from tasks.downstream.texts.answers import NO_ANSWER, Prediction
from tasks.downstream.texts.examples import count_labels, count_names, write_numbers, write_split
from tasks.downstream.texts.files import PLAIN_HINT, TEXT_PARTS, read_file, record_spec
from tasks.downstream.texts.params import ClassificationDataParams, GlueDataParams, TextsParams
from tasks.downstream.texts.schemas import make_schema
from tasks.downstream.texts.scores import TextsAnswers, TextsDevSet
from tasks.downstream.texts.task_table import TextExample, TextTask
from tasks.records.interpretation import Interpretation, column_names
from tasks.records.label_forms import match_known, require_same_spelling
from tasks.records.labels import add_labels, read_example_labels
from tasks.records.tables import Columns, open_file, table_form
from tasks.stage.errors import InputError, ParamsError


class TextsInference(Inference[TextsDevSet, Array, TextsAnswers, Prediction]):
    """Class or labels with all probabilities, or the value."""

    text_fields: ClassVar[Mapping[str, str]] = {"first": "text", "second": "text_pair"}

    @property
    def task(self) -> TextTask:
        return self.entry.params_as(TextsParams).text_task

    @property
    def model_classes(self) -> tuple[str, ...]:
        """Classes of the model."""
        folder = self.entry.examples_file(self.entry.development[0]).parent
        return read_example_labels(folder, self.entry.stage("examples"))

    @property
    def layouts(self) -> Sequence[Columns]:
        return record_spec(self.entry, INPUT, COLUMN, labelled=False).layouts

    @property
    def plain_hint(self) -> str:
        return "" if len(self.task.columns) > 1 else PLAIN_HINT

    def make_record(self, texts: Sequence[str]) -> dict[str, object]:
        counts = []
        for columns in self.layouts:
            names = [columns[part].names[0] for part in TEXT_PARTS if part in columns]
            if len(names) == len(texts):
                return dict(zip(names, texts, strict=True))
            counts.append(len(names))
        required = "one text: omit --text-pair" if 1 in counts else "two texts: pass --text and --text-pair, or a table"
        raise ParamsError(f"this model reads {required}")

    def require_columns(self, path: Path, *, labelled: bool) -> None:
        wanted = record_spec(self.entry, INPUT, COLUMN, labelled=labelled)
        next(iter(open_file(path, INPUT, wanted, Interpretation(), table_form(self.entry.params.data)).rows), None)

    @property
    def examples_schema(self) -> pa.Schema:
        return make_schema(self.task) if self.task.labels else add_labels(make_schema(self.task), self.model_classes)

    def read_unlabelled(self, path: Path, reading: Interpretation) -> Iterator[dict[str, object]]:
        for example in self._read_file(path, reading, labelled=False):
            yield {**example._asdict(), **({"label": []} if self.task.is_multilabel else {})}

    def _read_file(
        self, path: Path, reading: Interpretation, labelled: bool = True, flags: Sequence[str] = ()
    ) -> Iterator[TextExample]:
        """Yield the examples of a file; refuse pairs of texts if the model was trained on single texts."""
        data = self.entry.params_as(TextsParams).data
        is_own = isinstance(data, ClassificationDataParams) and data.columns.text_pair is None
        is_single = is_own and "text" in reading.trained and "text_pair" not in reading.trained
        for example in read_file(self.entry, path, INPUT, reading, named_by=COLUMN, labelled=labelled, flags=flags):
            if is_single and example.second is not None:
                first, second = map(column_names(reading.record()).__getitem__, TEXT_PARTS)
                single = COLUMN.format("text").replace("NAME", first)
                pair = COLUMN.format("text_pair").replace("NAME", second)
                raise InputError(
                    f"{path} has pairs of texts, {first!r} and {second!r}, and the model was trained on single texts. "
                    f"Pass {single} to read one column, or {single} {pair} for pairs"
                )
            yield example

    def write_labelled(self, path: Path, target: Path, reading: Interpretation) -> None:
        flags = () if self.task.labels else self.model_classes
        write_split(self.task, self._read_file(path, reading, flags=flags), target)
        data = self.entry.params_as(TextsParams).data
        if self.task.labels or isinstance(data, GlueDataParams):
            return
        names = count_names(count_labels(target))
        folds = data.similar_labels == "fold"
        if not folds:
            require_same_spelling(data, names, self.model_classes, f"{path} has", "the model has")
        if not set(match_known(names, self.model_classes, fold=folds).values()) & set(self.model_classes):
            raise InputError(
                f"{path}: no label is a class of the model ({', '.join(self.model_classes)}); found "
                f"{', '.join(list(names)[:5])}. Pass {COLUMN.format('label')} for another column; --labels "
                f"{','.join(self.model_classes)} if numbers from 0 are these classes; otherwise rename them in "
                "the file"
            )
        unknown = write_numbers([target], make_schema(self.task), self.model_classes, fold=folds)
        reading.counts[UNKNOWN_TO_MODEL] += unknown

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        if self.task.is_regression:
            return pa.schema([("value", pa.float64())])
        each = pa.struct([(name, pa.float64()) for name in self.task.labels or labels])
        if self.task.is_multilabel:
            return pa.schema([("labels", pa.list_(pa.string())), ("scores", each)])
        return pa.schema([("label", pa.string()), ("score", pa.float64()), ("scores", each)])

    def records(self, examples: TextsDevSet, answers: TextsAnswers, n_best: int) -> Iterator[dict[str, object]]:
        if self.task.is_regression:
            for value in self.scores.predictions(answers):
                yield {"value": value}
            return
        names = examples.classes[: examples.learned]
        shares = answers.form.probabilities(answers.logits).round(6).tolist()
        for answer, shown in zip(self.scores.predictions(answers), shares, strict=True):
            scores = dict(zip(names, shown, strict=True))
            if isinstance(answer, list):
                yield {"labels": [names[number] for number in answer], "scores": scores}
            elif answer == NO_ANSWER:
                yield {"label": None, "score": max(shown), "scores": scores}
            else:
                yield {"label": names[int(answer)], "score": shown[int(answer)], "scores": scores}

    def describe(self, record: Mapping[str, Any]) -> str:
        if "value" in record:
            return f"{record['value']:.4g}"
        labels = record.get("labels", [record["label"]] if record.get("label") is not None else [])
        return ", ".join(f"{name} {record['scores'][name]:.1%}" for name in labels) or "no label"
