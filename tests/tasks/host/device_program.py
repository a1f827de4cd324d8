"""A program that a launcher starts."""

from __future__ import annotations

from typing import Any

from tasks.params.schema import DeviceParams, validate_params
from tasks.params.strict_yaml import read_yaml
from tests.tasks.trained_checkout import PROJECT


def device(**values: Any) -> DeviceParams:
    return params(**values).device


def params(**values: Any) -> Any:
    content = read_yaml(PROJECT / "params.yaml")
    content["device"].update(values)
    return validate_params(content)
