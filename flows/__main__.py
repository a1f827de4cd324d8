"""Run `podium ...` as `python -m flows ...`, for environments without the command on PATH."""

import sys

try:
    from flows.cli import main
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"error: the package {error.name} is not installed for {sys.executable}: run `make setup` in the project, "
        "then .venv/bin/podium\n"
    )
    raise SystemExit(1) from None

if __name__ == "__main__":
    main()
