"""The documentation site: `make docs` builds it from the Markdown of this folder into site/, without a connection.

The build writes the pages of all parameters and all commands to made/.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

project = "Podium"
copyright = "the Podium developers, Apache License 2.0"
html_title = "Podium"
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["static"]
html_css_files = ["podium.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # a browser fetches summaries, which it refuses a page that lies on the disk
extensions = ["myst_parser"]
exclude_patterns = ["pictures", "static"]
highlight_language = "text"
myst_heading_anchors = 4
nitpicky = True
NAVIGATION = {
    "index": """Quick start <start>
        Fine-tuning <finetune>
        Pre-training <pretrain>
        Evaluation and publishing <evaluation>
        Runs <runs>
        Workers and devices <workers>
        Reference <made/reference>""",
    "start": "how-it-works",
    "finetune": "inputs downstream classification glue ner pairs models checkpoints",
    "evaluation": "publish production security",
    "runs": "plan tracking survive",
    "workers": "cuda ipu ipu-estimates speed deploy",
    "made/reference": "commands parameters ../presets ../coming-from ../extend",
}
"""Page -> the pages below it in the site's navigation."""
NAMED = re.compile(r"\[(?:docs/)?[\w-]+\.md\](\([\w-]+\.md(?:#[\w-]+)?\))")
"""A link whose text is the name of a file, as GitHub's readers see it."""


def make_pages(app):
    """Write the pages of all commands and all parameters, and the page that links them, where they changed."""
    from reference_pages import build_commands_page, build_params_page

    (HERE / "made").mkdir(exist_ok=True)
    makers = {"commands": build_commands_page, "parameters": build_params_page, "reference": lambda: "# Reference\n"}
    for name, make in makers.items():
        path, text = HERE / "made" / f"{name}.md", make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def add_navigation(app, name, source):
    """Name links by the titles of their pages, not by files, and add the pages below a page to its navigation."""
    source[0] = NAMED.sub(r"[]\1", source[0])
    if name in NAVIGATION:
        below = NAVIGATION[name]
        pages = below.split("\n") if name == "index" else below.split()
        hidden = "" if name == "made/reference" else ":hidden:\n"
        lines = "\n".join(page.strip() for page in pages)
        source[0] += f"\n```{{toctree}}\n{hidden}\n{lines}\n```\n"


def setup(app):
    app.connect("builder-inited", make_pages)
    app.connect("source-read", add_navigation)
