"""`podium export`: write a finished model as ONNX, in fp32 and int8, with its tokenizer."""

from pathlib import Path

import click

from flows.commands import model_options, options
from flows.commands.project import resolve_path
from tasks.stage.artifacts import EXPORT_FILES
from tasks.stage.errors import require_packages


@click.command(
    help="Write MODEL (a run, a release folder, a model folder or a Hub repository) as onnx/model.onnx and "
    "onnx/model_quantized.onnx (int8) into a new folder, with configuration and tokenizer. To score the files: podium "
    "evaluate FOLDER FILE --backend int8"
)
@click.argument("name", metavar="MODEL")
@click.option("--out", type=options.FILE, metavar="DIR", help="new folder (default: MODEL-onnx)")
@click.option(
    "--format",
    "formats",
    type=click.Choice((*EXPORT_FILES, "all")),
    default="all",
    show_default=True,
    help="onnx: fp32; int8: weights in 8 bits",
)
@model_options.tokenizer_option
@options.json_option
@click.pass_context
def command(
    ctx: click.Context, name: str, out: Path | None, formats: str, tokenizer: Path | None, as_json: bool
) -> None:
    from tasks.downstream.export.model_export import export_model
    from tasks.downstream.inference.model import find_model
    from tasks.downstream.inference.onnx_answers import EXPORTING

    require_packages("export", EXPORTING)
    model, trained = model_options.resolve_model(ctx, name, tokenizer, find_model)
    named = resolve_path(ctx, Path(name))
    folder = out or Path(f"{(named.resolve() if named.exists() else Path(name)).name}-onnx")
    chosen = list(EXPORT_FILES) if formats == "all" else [formats]
    exported = export_model(model, resolve_path(ctx, folder), chosen, trained)
    lines = [f"{folder / file}: {size / 1e6:.1f} MB\n" for file, size in exported["bytes"].items()]
    apart = exported["transformers_difference"]
    lines.append(f"logits of {next(iter(exported['bytes']))} differ by up to {apart:.2g} from transformers\n")
    options.print_result(
        as_json, exported, "".join(lines), f"podium predict {folder} --backend {chosen[-1]} --text TEXT"
    )
