"""The documentation site: `make docs` builds it from the Markdown of this folder into site/, without a connection.

The pages of all parameters and all commands are made when it is built, in made/.
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
NAMED = re.compile(r"\[(?:docs/)?[\w-]+\.md\](\([\w-]+\.md(?:#[\w-]+)?\))")
"""A link whose text is the name of a file, as GitHub's readers see it."""


def make_pages(app):
    """Write what the types and the commands say of themselves, where it is not there as it must be."""
    from reference_pages import commands_page, params_page

    (HERE / "made").mkdir(exist_ok=True)
    for name, make in {"commands": commands_page, "parameters": params_page}.items():
        path, text = HERE / "made" / f"{name}.md", make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def name_pages(app, name, source):
    """Links that are called by a file are called by the title of its page."""
    source[0] = NAMED.sub(r"[]\1", source[0])


def setup(app):
    app.connect("builder-inited", make_pages)
    app.connect("source-read", name_pages)
