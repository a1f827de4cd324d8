"""The whole of params.yaml, validated strictly: one frozen section per stage; an unknown key is an error.

`podium params` shows, searches and compares the values that result from presets and `--set`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import Field, ValidationError, create_model, model_validator

from ipu_model.core.strict import nearest
from tasks.params.downstream import Entries, defaults_of, kind_names, kind_params
from tasks.params.sections import (
    DEFAULT_PHASES,
    RESERVED,
    BaseModelParams,
    CheckpointParams,
    CorpusParams,
    DeviceParams,
    Dropout,
    Fraction,
    IpuParams,
    Positive,
    PretrainParams,
    PretrainRowsParams,
    PublishParams,
    Section,
    SectionOfPhases,
    TokenizerParams,
    TrackingParams,
    Word,
    get_default,
    is_left_out,
)
from tasks.params.strict_yaml import read_yaml
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

NEXT_SENTENCE_FAMILY = "bert"
"""Only family that is pre-trained with next-sentence prediction."""

FIXES = {"bool_type": "; write true or false", "string_type": "; put quotes around text"}
"""Type of a pydantic error -> how to fix it."""
TYPE_PARTS = ("[key]", "constrained-int", "constrained-float")
"""Parts of an error's place that name a type, not a parameter."""
S = TypeVar("S", bound=Section)


class ValidateParams(Section):
    min_documents: Positive = 10
    """Minimum number of documents; a smaller corpus is rejected."""
    max_control_share: Fraction = 0.001
    """Maximum share of control characters and U+FFFD in the text; more of them suggest a wrong encoding."""
    max_document_characters: Positive = 10_000_000
    """Maximum length of a document; longer ones suggest a corpus that was not split into documents."""
    max_unknown_share: Fraction = 0.25
    """Maximum share of [UNK] tokens in rows; more suggest a vocabulary of another language. A warning starts at 0.01.
    """
    max_cut_share: Fraction = 0.5
    """Maximum share of texts that are longer than a row and lose their ends. A warning starts at 0.01."""
    near_duplicates: Annotated[float, Field(ge=0.5, le=1)] | None = 0.8
    """Share of common shingles from which two texts count as near-duplicates (docs/evaluation.md); null: do not look
    for them."""


class ModelParams(Section):
    """Model architecture; the defaults are those of bert-base-uncased."""

    family: Word = "bert"
    """Family of encoders, by its model_type in transformers (docs/models.md)."""
    hidden_size: Positive = 768
    """Hidden size; a multiple of num_heads."""
    num_layers: Positive = 12
    """Number of encoder layers."""
    num_heads: Positive = 12
    """Number of attention heads per layer."""
    intermediate_size: Positive = 3072
    """Size of the feed-forward layers."""
    max_positions: Positive = 512
    """Maximum sequence length in tokens; no row may be longer."""
    hidden_dropout: Dropout = 0.1
    """Dropout rate of activations in pre-training."""
    attention_dropout: Dropout = 0.1
    """Dropout rate of attention weights in pre-training."""
    layer_norm_eps: Annotated[float, Field(gt=0)] = 1e-12
    """Epsilon of layer norms."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _check_head_size(self) -> ModelParams:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of num_heads={self.num_heads}")
        return self


class Params(Section):
    """All of params.yaml; a stage uses its own section only.

    The defaults are published BERT base, pre-trained on your own text, without fine-tuning entries.
    """

    corpus: CorpusParams = CorpusParams()
    """Text to pre-train on."""
    tokenizer: TokenizerParams = TokenizerParams()
    """Vocabulary."""
    validate_: Annotated[ValidateParams, Field(alias="validate")] = ValidateParams()
    """Limits of the data validation that runs before training."""
    packing: bool = True
    """Pack several sequences into a row, up to max_sequences_per_row; false: one sequence per row in every stage."""
    pretrain_rows: PretrainRowsParams = PretrainRowsParams()
    """Rows of the pre-training phases: sentence pairs with masked tokens."""
    model: ModelParams = ModelParams()
    """Model architecture; it must match base_model, if there is one."""
    base_model: BaseModelParams = BaseModelParams()
    """Pretrained BERT to start from instead of random weights; `model` must match its architecture."""
    device: DeviceParams = DeviceParams()
    """Runtime, precision and processes of device jobs."""
    ipu: IpuParams = IpuParams()
    """Placement and memory on IPUs, used if device.runtime is ipu or auto."""
    checkpoint: CheckpointParams = CheckpointParams()
    """Remote copies of checkpoints. They do not change results."""
    tracking: TrackingParams = TrackingParams()
    """Experiment tracking. It does not change results."""
    pretrain: PretrainParams = PretrainParams()
    """Pre-training, in two phases by default."""
    downstream: Entries = Field(default_factory=dict)
    """Fine-tuning entries, each with a name of your choice and a kind (docs/downstream.md)."""
    publish: PublishParams = PublishParams()
    """Publishing of releases; each entry sets its own target (downstream.*.publish)."""

    @model_validator(mode="after")
    def _check_publish_targets(self) -> Params:
        for key in ("folder", "repository"):
            places = {
                name: getattr(entry.publish, key)
                for name, entry in self.downstream.items()
                if name not in self.only_compared
            }
            first: dict[str, str] = {}
            for name, target in places.items():
                if target is None and self.publish.target == "hub":
                    raise ValueError(f"publish.target: hub needs downstream.{name}.publish.repository: user/name")
                if target is not None and first.setdefault(target, name) != name:
                    raise ValueError(
                        f"downstream.{first[target]}.publish.{key} and downstream.{name}.publish.{key} are both "
                        f"{target}: give each release its own"
                    )
        if self.publish.base_model and self.base_model.source == "none":
            raise ValueError(
                f"publish.base_model={self.publish.base_model}, but base_model.source is none: set publish.base_model "
                "to null, or set the model in section base_model"
            )
        return self

    @property
    def only_compared(self) -> set[str]:
        """Names of the entries that others are compared with, which are never published."""
        return {entry.against for entry in self.downstream.values() if entry.against is not None}

    @model_validator(mode="after")
    def _check_compared_entries(self) -> Params:
        for name, entry in self.downstream.items():
            if entry.against is None:
                continue
            key, other = f"downstream.{name}.against={entry.against}", self.downstream.get(entry.against)
            if other is None:
                raise ValueError(f"{key}: no entry has this name{nearest(entry.against, list(self.downstream))}")
            if other.against is not None:
                raise ValueError(f"{key}: this entry is compared with another one itself. Set its `against` to null")
            if (other.kind, other.options, other.data) != (entry.kind, entry.options, entry.data):
                raise ValueError(f"{key}: both entries must have the same kind and the same data")
        return self

    @model_validator(mode="after")
    def _check_text_source(self) -> Params:
        rows, corpus = self.pretrain_rows.source, self.corpus.source
        prepared = self.pretrain.enabled and rows != "corpus"
        if self.pretrain.enabled and rows == "corpus" and corpus == "none":
            raise ValueError("corpus.source=none leaves no text for rows: set pretrain_rows.source to files or hub")
        if prepared and corpus != "none":
            raise ValueError(
                f"pretrain_rows.source={rows} reads prepared sequences, so the corpus ({corpus}) would not be used: "
                "set corpus.source to none"
            )
        if prepared and self.tokenizer.source == "train":
            raise ValueError(
                f"pretrain_rows.source={rows} needs the vocabulary that prepared the sequences: set "
                "tokenizer.source to file or hub"
            )
        if self.tokenizer.source == "train" and corpus == "none":
            raise ValueError(
                "corpus.source=none leaves no text to train a vocabulary on: set tokenizer.source to file or hub"
            )
        return self

    @model_validator(mode="after")
    def _check_phases_and_entries(self) -> Params:
        lengths = {f"downstream.{name}.rows": entry.rows.row_length for name, entry in self.downstream.items()}
        phases = self.pretrain.list_phases()
        for name, entry in self.downstream.items():
            if entry.start == "base" and self.base_model.source == "none":
                raise ValueError(f"downstream.{name}.start: base needs a base model: set base_model.source")
            if self.device.runtime == "ipu" and not entry.runs_on_ipus:
                raise ValueError(
                    f"downstream.{name}: kind {entry.kind} does not run on IPUs. Set device.runtime to cpu or cuda"
                )
            if entry.start not in ("auto", "base", *self.pretrain.phases):
                known = ["auto", "base", *self.pretrain.phases]
                raise ValueError(f"downstream.{name}.start: {entry.start} is not known{nearest(entry.start, known)}")
            if entry.start in self.pretrain.phases and entry.start not in phases:
                raise ValueError(
                    f"downstream.{name}.start: {entry.start} needs pretrain.enabled: true, and "
                    f"pretrain.{entry.start}.steps above 0"
                )
            if (layers := entry.distill.layers) is not None and layers > self.model.num_layers:
                raise ValueError(
                    f"downstream.{name}.distill.layers={layers} exceeds model.num_layers={self.model.num_layers}"
                )
        family = self.model.family
        if phases and self.pretrain_rows.next_sentence and family != NEXT_SENTENCE_FAMILY:
            raise ValueError(
                f"pretrain_rows.next_sentence: true needs model.family: {NEXT_SENTENCE_FAMILY}, found {family}: set "
                "pretrain_rows.next_sentence to false"
            )
        lengths |= {f"pretrain_rows.{phase}": self.pretrain_rows.get_phase(phase).row_length for phase in phases}
        for name, length in lengths.items():
            if length > self.model.max_positions:
                raise ValueError(f"{name}.row_length={length} exceeds model.max_positions={self.model.max_positions}")
        return self

    @model_validator(mode="after")
    def _check_pairs_have_token_types(self) -> Params:
        if self.pretrain.list_phases() and self.pretrain_rows.next_sentence and self.tokenizer.kind == "bpe":
            raise ValueError(
                "tokenizer.kind: bpe gives both sentences of a pair the same token type, which next-sentence "
                "prediction needs to differ. Set pretrain_rows.next_sentence to false, or tokenizer.kind to wordpiece"
            )
        return self

    @model_validator(mode="after")
    def _check_phases_follow_one_another(self) -> Params:
        known, active = self.pretrain.phases, self.pretrain.list_phases()
        for phase in known if self.pretrain.enabled else ():
            steps = self.pretrain.get_phase(phase).steps
            if steps and phase not in active:
                off = known[len(active)]
                raise ValueError(
                    f"pretrain.{phase}.steps={steps}, but pretrain.{off}.steps is 0 and each phase starts from the "
                    f"one before it: set updates of {off}, or none of {phase}"
                )
            if steps and not self.pretrain_rows.get_phase(phase).row_length:
                raise ValueError(f"pretrain.{phase}.steps={steps} needs pretrain_rows.{phase}.row_length: set it")
        return self

    @model_validator(mode="after")
    def _check_names_of_phases(self) -> Params:
        sections = {"pretrain": self.pretrain, "pretrain_rows": self.pretrain_rows, "ipu": self.ipu}
        for name, section in sections.items():
            if unknown := [f"{name}.{phase}" for phase in section.added_phases if phase not in self.pretrain.phases]:
                near = nearest(unknown[0], [f"{name}.{key}" for key in section.get_fields()])
                raise ValueError(
                    f"{unknown[0]} is not known{near}; for a phase, add it to pretrain.phases "
                    f"[{', '.join(self.pretrain.phases)}], or remove it: --set {unknown[0]}=null"
                )
        fields = {field for section in sections.values() for field in section.get_fields()} - {*DEFAULT_PHASES}
        if taken := [
            phase for phase in self.pretrain.phases if phase in {*RESERVED, "auto", *fields, *self.downstream}
        ]:
            raise ValueError(f"pretrain.phases: {taken[0]} is the name of something else: choose another")
        return self

    @model_validator(mode="after")
    def _check_thetas_have_longer_rows(self) -> Params:
        phases = self.pretrain.list_phases()
        for before, phase in itertools.pairwise(phases):
            theta, setter = self.pretrain.get_phase(phase).global_rope_theta, self.pretrain.find_theta(before)
            if theta is None or (setter and theta == self.pretrain.get_phase(setter).global_rope_theta):
                continue
            short, long = (self.pretrain_rows.get_phase(name).row_length for name in (before, phase))
            if long <= short:
                raise ValueError(
                    f"pretrain.{phase}.global_rope_theta={theta:g} changes the base of the rotation, but "
                    f"pretrain_rows.{phase}.row_length={long} is not longer than the {short} tokens of {before}. Set "
                    "longer rows, or global_rope_theta to null"
                )
        return self


def load_params(path: Path = artifacts.PARAMS) -> Params:
    """Return the validated content of params.yaml; for errors see `validate_section`."""
    return validate_params(read_yaml(Path(path)), str(path))


def load_sections(*names: str, path: Path = artifacts.PARAMS) -> Any:
    """Return these sections of params.yaml, validated, as attributes of `Params`; ignore the other sections.

    For errors see `validate_section`.
    """
    fields: dict[str, Any] = {name: (Params.model_fields[name].annotation, Params.model_fields[name]) for name in names}
    keys = {field.alias or name for name, (_, field) in fields.items()}
    values = {key: value for key, value in read_yaml(Path(path)).items() if key in keys}
    return validate_section(create_model("Params", __base__=Section, **fields), values, str(path))


def apply_packing(section: S, packing: bool) -> S:
    """Return a section of rows according to `packing`: without packing, a row holds one sequence.

    A global batch counts sequences, so the number of updates does not change: fewer sequences per row mean more rows.
    """
    return section if packing else section.model_copy(update={"max_sequences_per_row": 1})


def replace_value(section: S, path: Sequence[str], value: Any) -> S:
    """Return a validated section with another value at a path, for example a path that is valid from another folder."""
    word, *rest = path
    inner = getattr(section, word)
    if rest and isinstance(inner, dict):  # the entries
        value = {**inner, rest[0]: replace_value(inner[rest[0]], rest[1:], value)}
    elif rest:
        value = replace_value(inner, rest, value)
    return section.model_copy(update={word: value})


def validate_params(values: dict[str, Any], where: str = "params") -> Params:
    """Validate plain values as Params; `where` names their source in messages."""
    return validate_section(Params, values, where)


def validate_section(kind: type[S], values: dict[str, Any], where: str) -> S:
    """Validate plain values as a section; `where` names their source in messages.

    Raises:
        ParamsError: the values are invalid; one message lists all problems, each with the nearest valid name, the
            range or the default.
    """
    problems = []
    for name, section, key, present in walk_parameters(values, kind) if kind is Params else ():
        field = section.get_fields()[key]
        # DVC does not see defaults, so the file must state every value that is not left out.
        if not present and not field.is_required() and not is_left_out(field):
            problems.append(f"{name} is missing; its default is {json.dumps(get_default(field))}")
    try:
        built = kind.model_validate(values)
    except ValidationError as error:
        problems = [*(_explain(problem, kind) for problem in error.errors()), *problems]
    else:
        if not problems:
            return built
    lines = "\n".join(f"  {problem}" for problem in dict.fromkeys(problems))
    raise ParamsError(f"invalid values in {where}:\n{lines}") from None


def walk_parameters(
    values: Mapping[str, Any], section: type[Section] = Params, before: str = ""
) -> Iterator[tuple[str, type[Section], str, bool]]:
    """Yield every parameter and section of these values, which need not be valid: dotted name, section class, key, and
    True if the key is present. The names begin with `before`."""
    for key, field in section.get_fields().items():
        yield f"{before}{key}", section, key, key in values
        value, inner = values.get(key), field.annotation
        if isinstance(inner, type) and issubclass(inner, Section) and isinstance(value, Mapping):
            yield from walk_parameters(value, inner, f"{before}{key}.")
            for added in list_sections([inner.added] if issubclass(inner, SectionOfPhases) else []):
                for phase, part in value.items():
                    if phase not in inner.get_fields() and isinstance(part, Mapping):
                        yield from walk_parameters(part, added, f"{before}{key}.{phase}.")
        elif section is Params and key == "downstream" and isinstance(value, Mapping):
            for name, entry in value.items():
                if isinstance(entry, Mapping) and entry.get("kind") in kind_names():
                    yield from walk_parameters(entry, kind_params(entry["kind"]), f"{key}.{name}.")


def _explain(problem: Any, kind: type[Section]) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part not in TYPE_PARTS)
    *section, key = problem["loc"] or ("",)
    is_phase = problem["type"] == "model_type" and any(
        issubclass(section_type, SectionOfPhases) for section_type in list_sections(types_at(section, kind))
    )
    if problem["type"] == "extra_forbidden" or is_phase:
        known = dict.fromkeys(
            name for section_type in list_sections(types_at(section, kind)) for name in section_type.get_fields()
        )
        known.pop(key, None)  # entries of another kind may have this key
        return f"{where} is not known{nearest(str(key), list(known))}"
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"] == "value_error":
        return f"{where + ': ' if where else ''}{problem['ctx']['error']}"
    fix = FIXES.get(problem["type"], "")
    return f"{where}={problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}{fix}"


def types_at(path: Sequence[Any], kind: type[Section] = Params) -> list[Any]:
    """Return the possible types of a parameter or section; in an entry, the types of all kinds."""
    types: list[Any] = [kind]
    for depth, part in enumerate(path):
        if kind is Params and path[0] == "downstream" and depth == 1:
            types = [kind_params(name) for name in kind_names()]
        else:
            fields = [
                field for section in list_sections(types) if (field := section.get_fields().get(part)) is not None
            ]
            added = [section.added for section in list_sections(types) if issubclass(section, SectionOfPhases)]
            types = [member for field in fields for member in _members(field.annotation)] or added
    return types


def list_sections(types: Sequence[Any]) -> list[type[Section]]:
    """Return the sections among the types of a place."""
    return [kind for kind in types if isinstance(kind, type) and issubclass(kind, Section)]


def _members(annotation: Any) -> list[Any]:
    """Return the types of a union, without annotations."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for alternative in get_args(annotation) for member in _members(alternative)]
    return [annotation]


def parameter_values(params: Params) -> dict[str, Any]:
    """Return validated parameters as plain values, with the keys of the file."""
    return params.model_dump(mode="json", by_alias=True)


def unify_numbers(values: dict[str, Any], params: Params) -> dict[str, Any]:
    """Return the values with every number as in their validated parameters: 0 is 0.0 for a float, so both are equal."""
    return _unify(values, parameter_values(params))


def _unify(value: Any, typed: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(typed, Mapping):
        return {name: _unify(inner, typed.get(name)) for name, inner in value.items()}
    if isinstance(value, list) and isinstance(typed, list):
        return list(map(_unify, value, typed))
    return typed if isinstance(typed, float) and type(value) is int else value


def default_values(values: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return every default as plain values, which presets override.

    Entries of `values` are included with the defaults of their kinds, if the kinds exist.
    """
    entries = values.get("downstream")
    kinds = {name: entry.get("kind") for name, entry in (entries if isinstance(entries, dict) else {}).items()}
    known = {name: defaults_of(kind, name) for name, kind in kinds.items() if kind in kind_names()}
    return {**parameter_values(Params()), "downstream": known}
