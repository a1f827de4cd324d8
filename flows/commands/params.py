"""`podium params`: show and search parameters, and compare presets."""

import click

from flows.commands import options, presets
from flows.commands.project import enter_project
from tasks.params import documentation
from tasks.params import tables as params
from tasks.params.overlays import DEMO, read_base, resolve
from tasks.params.strict_yaml import leaves
from tasks.stage import artifacts, streams


@click.group(help="Show and search the parameters of params.yaml and --set, and compare presets.")
def command() -> None:
    pass


@command.command(
    "list", help="List parameters with values and descriptions. QUERY filters the list, and finds those of every kind."
)
@click.argument("query", default="")
@options.parameter_options
@click.option("--name", metavar="RUN", shell_complete=options.complete_runs, help="list the parameters of this run")
@options.json_option
@click.pass_context
def list_parameters(
    ctx: click.Context, query: str, preset: str | None, overrides: tuple[str, ...], name: str | None, as_json: bool
) -> None:
    project, base = enter_project(ctx), read_base(preset)
    if name is not None:
        if preset is not None:
            raise click.UsageError("--name takes the parameters of a run: leave out --preset", ctx)
        from flows.runs import listing, run_params

        [run] = listing.find_runs(project, [name])
        base = run_params.read_run_params(project, run.folder)
    values = resolve(base, preset, list(overrides))
    if query:
        values = params.add_left_out(params.add_kinds(values))
    rows = params.search(values, documentation.collect_meanings(values), query)
    listed = [{"name": name, "value": value, "meaning": meaning} for name, value, meaning in rows]
    lines = [(name, params.format_value(value), meaning) for name, value, meaning in rows]
    text = options.truncate_lines(params.format_table(lines)) if lines else f"no parameter matches {query!r}\n"
    source = f" --like {name}" if name is not None else f" --preset {preset}" if preset is not None else ""
    after = f"podium run{source} --set NAME=VALUE, or podium params show for the whole file"
    options.print_result(as_json, listed, text, after)


@command.command("show", help="Show the resolved parameters as a params.yaml, with the origin of each value.")
@options.parameter_options
@options.json_option
@click.pass_context
def show_parameters(ctx: click.Context, preset: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    enter_project(ctx)
    base = read_base(preset)
    text = params.format_params(base, preset, list(overrides))
    if as_json:
        values = dict(leaves(resolve(base, preset, list(overrides))))
        said = params.find_origins(base, preset, list(overrides), artifacts.PRESETS)
        origin = {name: said.get(name, params.DEFAULT) for name in values}
        options.print_json({name: {"value": value, "origin": origin[name]} for name, value in values.items()})
        return
    streams.say(options.truncate_lines(text))
    options.print_next("podium plan with the same options shows what a run would do")


@command.command("schema", help="Print the JSON Schema of params.yaml, for editors and other programs.")
@click.option("--preset", "of_presets", is_flag=True, help="print the schema of presets/*.yaml instead")
@click.option("--write", "is_written", is_flag=True, help="write both schemas into schemas/, where editors find them")
@click.pass_context
def print_schema(ctx: click.Context, of_presets: bool, is_written: bool) -> None:
    if is_written:
        enter_project(ctx)
        for path in documentation.write_schemas():
            streams.say(f"{path}\n")
        return
    options.print_json(documentation.preset_schema() if of_presets else documentation.params_schema())


@command.command("diff", help="Show how two presets differ, by section. demo means params.yaml.")
@click.argument("first", shell_complete=options.complete_sides)
@click.argument("second", default=DEMO, shell_complete=options.complete_sides)
@options.json_option
@click.pass_context
def diff_presets(ctx: click.Context, first: str, second: str, as_json: bool) -> None:
    enter_project(ctx)
    rows = params.compare_presets(read_base(None), (first, second))
    differences = {name: {first: left, second: two} for name, (left, two) in rows}
    text = options.truncate_lines(params.format_differences(rows, first, second))
    options.print_result(
        as_json, differences, text, f"podium params show --preset {first if first != DEMO else second}"
    )


command.add_command(presets.command)
