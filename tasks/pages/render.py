"""Pages and cards from Jinja templates, in which every value is text: it never becomes an element, a link or a heading.

Templates lie in the folder templates/ beside the module that fills them; what several pages share lies beside this one.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.pages.markup import markdown_code, markdown_link, markdown_text, readable
from tasks.params.strict_yaml import yaml_text

FOLDER = "templates"


def html_page(module: str, template: str, **values: Any) -> str:
    """A page from the template of that name in the folder templates/ beside `module` (its __file__)."""
    script = page_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = _environment(module, _html_value)
    return environment.get_template(template).render(values, script=script, script_hash=f"sha256-{digest}")


@cache
def page_script() -> Markup:
    """The one script that a page runs: of this package, so that it is markup of our own."""
    return Markup(Path(__file__).with_name(FOLDER).joinpath("page.js").read_text(encoding="utf-8"))


def markdown_page(module: str, template: str, **values: Any) -> str:
    """As `html_page`, of Markdown: a value is a part of one line."""
    environment = _environment(module, _markdown_value)
    environment.filters |= {
        "code": lambda value: Markup(markdown_code(value)),
        "link": lambda value, address: Markup(markdown_link(value, address)),
        # As Python and JSON write a value, on one line of code.
        "json": lambda value: Markup(readable(json.dumps(value, ensure_ascii=False))),
        "yaml": lambda value: Markup(yaml_text(value).strip()),
    }
    return environment.get_template(template).render(values)


def text_page(module: str, template: str, **values: Any) -> str:
    """As `html_page`, of plain text, in which values stand as they are: who prints it makes it printable."""
    return _environment(module, _text_value).get_template(template).render(values)


@cache
def _environment(module: str, finalize: Callable[[Any], Any]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([Path(module).with_name(FOLDER), Path(__file__).with_name(FOLDER)]),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"thousands": "{:,}".format, "fixed": lambda value, digits=2: f"{value:.{digits}f}"}
    return environment


def _html_value(value: Any) -> str:
    """What Jinja escapes then, unless it is markup of the template's own."""
    return value if isinstance(value, Markup) else readable(str(value))


def _text_value(value: Any) -> Markup:
    return Markup(str(value))


def _markdown_value(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(markdown_text(value))
