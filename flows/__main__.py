"""`python -m flows ...` is `podium ...`, where the command is not on PATH."""

import sys

try:
    from flows.cli import main
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"error: {sys.executable} lacks the package {error.name}: run `make setup` in the project, and then "
        ".venv/bin/podium\n"
    )
    raise SystemExit(1) from None

if __name__ == "__main__":
    main()
