"""Groups of options that refuse unknown names, wrong types, and changes once frozen."""

from __future__ import annotations

import copy
from typing import Any, Dict

FROZEN = "these options are in use by an executor: change a clone() of them instead"


class Freezable:
    """Named values. Reading an unknown name raises AttributeError, setting one AssertionError."""

    def __init__(self, **values: Any) -> None:
        self._frozen = False
        self._values = values

    def _set(self, name: str, value: Any, new: bool = False) -> None:
        self._check_not_frozen()
        if name in self._values:
            wanted = type(self._values[name])
            assert isinstance(value, wanted), f"option {name} takes {wanted.__name__}, found {value!r}"
        else:
            assert new, f"there is no option {name}: {sorted(self._values)}"
        self._values[name] = value

    def _check_not_frozen(self) -> None:
        if self._frozen:
            raise AttributeError(FROZEN)

    def _freeze(self, frozen: bool = True) -> None:
        self.__dict__["_frozen"] = frozen
        for value in self.__dict__.values():
            if isinstance(value, Freezable):
                value._freeze(frozen)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name.startswith("_") or name not in values:
            raise AttributeError(f"{type(self).__name__} has no option {name}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if "_values" not in self.__dict__:
            self.__dict__[name] = value  # while __init__ runs
            return
        self._check_not_frozen()
        if not name.startswith("_"):
            self._set(name, value)
        elif name in self.__dict__:
            self.__dict__[name] = value
        else:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        made.__dict__["_frozen"] = False
        return made


class Settings(Freezable):
    def exists(self, option: str) -> bool:
        return option in self._values

    def toDict(self) -> Dict[str, Any]:
        return dict(self._values)
