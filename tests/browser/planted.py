"""Text of a user that would do something if a page took it for more than text, and such that is hard to lay out."""

import dataclasses

EVIL = (
    '"><b data-planted>x</b><script>window.planted=1</script><img src=x onerror=window.planted=2 data-planted>'
    "' onclick='window.planted=3 {{ 7*7 }} </style></title></svg><!-- \x1b[31mred\x1b[0m \u202e[a](javascript:1)"
)
LONG = "/home/someone/" + "a-very-long-name-without-a-space" * 6
SHOWN = "<b data-planted>x</b><script>window.planted=1</script>"
"""What a reader sees of EVIL, in any page that shows it."""


def at(place, text=""):
    return f"{text} {place}: {EVIL}".strip()


def everywhere(value, keep=(), place=""):
    """A value with EVIL after every text that it holds, named by its field or key, but for those in `keep`."""
    if isinstance(value, str):
        return at(place, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **_planted_in(parts, keep))
    if isinstance(value, dict):
        return _planted_in(value, keep)
    if isinstance(value, list | tuple):
        return type(value)(everywhere(part, keep, place) for part in value)
    return value


def _planted_in(parts, keep):
    return {name: part if name in keep else everywhere(part, keep, name) for name, part in parts.items()}


def missing(text, places):
    return [place for place in places if f'{place}: ">{SHOWN}' not in text]
