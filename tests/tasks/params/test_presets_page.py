"""docs/presets.md says what the presets say."""

import pytest

from docs.reference_pages import BEGIN, END, PAGE, fill_presets_page, write_presets_page
from tasks.params.overlays import list_preset_names
from tasks.stage.errors import InputError
from tests.places import ROOT

PRESETS = ROOT / "presets"


def test_the_page_is_as_the_presets_are():
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert fill_presets_page(text, PRESETS) == text, "run `python -m docs.reference_pages`"
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| [`")]
    for name in list_preset_names(PRESETS):
        assert sum(f"[`{name}`](../presets/{name}.yaml)" in cell for cell in first) == 1


def test_only_what_lies_between_the_marks_is_made_anew(tmp_path):
    (tmp_path / "one.yaml").write_text(
        "description: the first of all\nsource: ['a/b:c.md']\nexpected: {f1: 88.5}\n"
        "downstream: {squad: {kind: squad, finetune: {epochs: 7}}}\n"
    )
    (tmp_path / "cuda-one.yaml").write_text(f"{(tmp_path / 'one.yaml').read_text()}device: {{runtime: cuda}}\n")
    text = f"by hand\n{BEGIN} -->\nold\n{END}\nby hand as well\n"
    made = fill_presets_page(text, tmp_path)
    assert made.startswith(f"by hand\n{BEGIN} -->\n| presets |")
    assert made.endswith(f"{END}\nby hand as well\n")
    assert "old" not in made
    both = "[`cuda-one`](../presets/cuda-one.yaml), [`one`](../presets/one.yaml) (auto)"
    assert f"| {both} | 12 of 768 | 128, 256, 900,000; 512, 256, 100,000 |" in made
    assert "| 32 sequences, 7 epochs, rate 5e-05 | f1 88.5 |" in made
    assert fill_presets_page(made, tmp_path) == made


def test_a_page_without_marks_is_refused_and_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing to fill")
    with pytest.raises(InputError, match="needs the lines"):
        write_presets_page(page)
    assert page.read_text() == "nothing to fill"
