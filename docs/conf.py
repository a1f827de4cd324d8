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
    "index": "start finetune pretrain evaluation runs workers made/reference",
    "start": "how-it-works",
    "finetune": "inputs downstream classification glue ner pairs models checkpoints",
    "evaluation": "publish production security",
    "runs": "plan tracking survive",
    "workers": "cuda ipu ipu-estimates speed deploy",
    "made/reference": "made/commands made/parameters presets coming-from extend",
}
"""Page -> the pages below it in the site's navigation."""
LABELS = {
    "start": "Quick start",
    "how-it-works": "Architecture",
    "finetune": "Fine-tuning",
    "inputs": "Inputs",
    "downstream": "Tasks",
    "classification": "Classification and regression",
    "glue": "GLUE",
    "ner": "Named entities",
    "pairs": "Sentence embeddings",
    "models": "Models",
    "checkpoints": "Model formats",
    "pretrain": "Pre-training",
    "evaluation": "Evaluation",
    "publish": "Publishing",
    "production": "Export and serving",
    "security": "Security",
    "runs": "Runs",
    "plan": "Run estimates",
    "tracking": "Trackers",
    "survive": "Resuming",
    "workers": "Workers",
    "cuda": "GPUs",
    "ipu": "IPUs",
    "ipu-estimates": "IPU estimates",
    "speed": "Speed",
    "deploy": "Containers and upgrades",
    "made/reference": "Reference",
    "made/commands": "All commands",
    "made/parameters": "All parameters",
    "presets": "Presets",
    "coming-from": "Migration",
    "extend": "Extending Podium",
}
"""Page -> its name in the navigation and in sentences; its title is a question."""
NAMED = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\(([\w-]+)\.md((?:#[\w-]+)?)\)")
"""A link whose text is the name of a file, as GitHub's readers see it."""


def make_pages(app):
    """Write the pages of all commands and all parameters, and the page that links them, where they changed."""
    from reference_pages import build_commands_page, build_params_page

    (HERE / "made").mkdir(exist_ok=True)
    makers = {
        "commands": build_commands_page,
        "parameters": build_params_page,
        "reference": lambda: "# Where do I look things up?\n",
    }
    for name, make in makers.items():
        path, text = HERE / "made" / f"{name}.md", make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def add_navigation(app, name, source):
    """Name links by their pages or parts, not by files, and add the pages below a page to its navigation."""
    source[0] = NAMED.sub(lambda link: f"[{'' if link[2] else LABELS[link[1]]}]({link[1]}.md{link[2]})", source[0])
    if name in NAVIGATION:
        hidden = "" if name == "made/reference" else ":hidden:\n"
        lines = "\n".join(f"{LABELS[page]} </{page}>" for page in NAVIGATION[name].split())
        source[0] += f"\n```{{toctree}}\n{hidden}\n{lines}\n```\n"


def setup(app):
    app.connect("builder-inited", make_pages)
    app.connect("source-read", add_navigation)
