"""What docs/ipu-estimates.md says of the estimates, made again: published throughput, known layouts, proposals."""

import dataclasses

import pytest

from bench.ipu_estimates import BALANCED, DOCUMENT, make_tables, replace_tables
from bench.ipu_fit import NAMES, estimate_rows, fit, summarise_errors
from bench.ipu_layouts import OVERSIZED, list_preset_jobs, preset_jobs, sum_certain_bytes
from bench.ipu_published import ANSWERS, PRETRAINING, PUBLISHED
from ipu_model.estimates.estimate import DOES_NOT_FIT, FITS, TIGHT, JobEstimate
from ipu_model.estimates.ipu import estimate_ipus, propose_layout, rows_per_second
from ipu_model.estimates.ipu_constants import FITTED, LOW, TILE_BYTES
from ipu_model.estimates.ipu_memory import estimate_memories


@pytest.fixture(scope="module")
def judged():
    return estimate_rows()


def test_the_document_has_the_tables_that_the_command_makes():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert replace_tables(text, make_tables()) == text, "run python -m bench.ipu_estimates --write"


def test_pretraining_is_estimated_from_other_layouts(judged):
    median, worst = summarise_errors(judged, PRETRAINING)
    assert median <= 0.10
    assert worst <= 0.20


def test_what_is_left_out_is_every_row_of_the_layout():
    """A planted row moves the constants that other layouts are estimated by, and not its own."""
    first = PUBLISHED[0]
    planted = [dataclasses.replace(first, rate=first.rate / 2), *PUBLISHED[1:]]
    before, after = estimate_rows(), estimate_rows(planted)
    for old, new in zip(before, after, strict=True):
        assert (old.estimated == new.estimated) == (old.row.layout == first.layout)


@pytest.mark.parametrize("head", [PRETRAINING, ANSWERS])
def test_the_interval_of_every_row_holds_it(judged, head):
    of_head = [row for row in judged if row.row.head == head]
    assert len(of_head) >= 5
    for interval in ("held_out_interval", "fitted_interval"):
        assert [row for row in of_head if not row.is_inside(getattr(row, interval))] == []


def test_what_a_row_is_estimated_to_be_lies_in_its_own_interval(judged):
    """Both are by the constants of other layouts; `fitted_interval` is by constants that know the row."""
    for row in judged:
        assert row.held_out_interval.low <= row.estimated <= row.held_out_interval.high, row.row
    [squad] = [row for row in judged if row.row.head == ANSWERS and row.row.model == "base"]
    assert not squad.fitted_interval.low <= squad.estimated <= squad.fitted_interval.high


def test_the_constants_are_those_of_the_fit():
    fitted = fit([row for row in PUBLISHED if row.fitted])
    for name in NAMES:
        assert getattr(FITTED, name) == pytest.approx(getattr(fitted, name), rel=0.01), name


def test_no_published_layout_is_said_not_to_fit():
    verdicts = {(known.preset, known.name): known.verdict() for known in list_preset_jobs()}
    assert len(verdicts) > 100
    assert {name for name, verdict in verdicts.items() if verdict not in (FITS, TIGHT)} == set()


def test_published_layouts_bound_the_code():
    """The docstring of MemoryAssumptions.code: with 290 MB and the rest at its lower end all still fit, barely."""
    fullest = max(known.fullest().total.low for known in list_preset_jobs() if known.job.kind != "predict")
    assert 280e6 <= LOW.code + TILE_BYTES - fullest <= 300e6


@pytest.mark.parametrize("bad", OVERSIZED, ids=lambda bad: f"{bad.preset}-{bad.name}-{bad.change}")
def test_what_cannot_fit_is_said_not_to(bad):
    """And the layout that it was made from is not: it is the change that does it."""
    known = bad.job()
    assert known.verdict() == DOES_NOT_FIT
    [before] = [job for job in preset_jobs(bad.preset) if job.name == bad.name]
    assert sum_certain_bytes(known.fullest()) > sum_certain_bytes(before.fullest())


@pytest.mark.parametrize("preset", BALANCED)
def test_a_proposal_fits_and_a_job_changed_so_is_planned_and_estimated_so(preset):
    for known in preset_jobs(preset):
        if known.job.kind == "predict":
            continue
        proposal = propose_layout(known.job, known.model, known.rows)
        verdict = JobEstimate("", estimate_memories(proposal.current), None).verdict
        assert verdict == estimate_ipus(known.job, known.model, known.rows).verdict
        cut, before = proposal.proposed, proposal.current
        if cut is None:
            continue
        assert JobEstimate("", estimate_memories(cut), None).verdict == FITS
        assert proposal.gain > 0
        assert cut.rows_per_update == before.rows_per_update
        ipus = [len(layout.placement.layers_per_ipu) * layout.replicas for layout in (before, cut)]
        assert ipus[0] == ipus[1]
        keys = {
            "layers_per_ipu": list(cut.placement.layers_per_ipu),
            "replication_factor": cut.replicas,
            "matmul_proportion": list(cut.matmul_proportion),
            "recompute_checkpoint_every_layer": cut.keeps_every_layer,
        }
        geometry = dataclasses.replace(known.job.geometry, micro_batch_size=cut.micro_batch_size)
        config = {**(known.job.ipu_config or {}), **keys}
        job = dataclasses.replace(known.job, geometry=geometry, ipu_config=config)
        estimate = estimate_ipus(job, known.model, known.rows)
        assert estimate.verdict == FITS
        likely = estimate.time.sequences_per_second.likely
        assert likely == pytest.approx(rows_per_second(cut) * known.rows.packing_factor)
