"""Rendering of pages and cards from Jinja templates. Every value is text: it never becomes an element, link or heading.

Templates are in the folder templates/ next to the module that renders them; shared ones are next to this module.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.pages.markup import markdown_code, markdown_link, markdown_text, replace_hidden
from tasks.params.strict_yaml import yaml_text

FOLDER = "templates"


def render_html(module: str, template: str, **values: Any) -> str:
    """Return an HTML page from a template in the folder templates/ next to `module` (its __file__)."""
    script = page_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = _environment(module, _html_value)
    return environment.get_template(template).render(values, script=script, script_hash=f"sha256-{digest}")


@cache
def page_script() -> Markup:
    """Return the only script of a page; it is part of this package, and therefore trusted markup."""
    return Markup(Path(__file__).with_name(FOLDER).joinpath("page.js").read_text(encoding="utf-8"))


def render_markdown(module: str, template: str, **values: Any) -> str:
    """Return Markdown from a template; each value is part of one line."""
    environment = _environment(module, _markdown_value)
    environment.filters |= {
        "code": lambda value: Markup(markdown_code(value)),
        "link": lambda value, address: Markup(markdown_link(value, address)),
        # JSON on one line of code.
        "json": lambda value: Markup(replace_hidden(json.dumps(value, ensure_ascii=False))),
        "yaml": lambda value: Markup(yaml_text(value).strip()),
    }
    return environment.get_template(template).render(values)


def render_text(module: str, template: str, **values: Any) -> str:
    """Return plain text from a template; values are not escaped, so that the caller must make them printable."""
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
    """Return a value for Jinja to escape; markup of the template itself passes."""
    return value if isinstance(value, Markup) else replace_hidden(str(value))


def _text_value(value: Any) -> Markup:
    return Markup(str(value))


def _markdown_value(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(markdown_text(value))
