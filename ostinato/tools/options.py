"""Options that several commands share, declared once, and the small grammars behind them.

Nothing is guessed: a model given twice, a shape without a name or a number that is none is a usage error (exit code 2) that shows what was expected.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer

from ostinato.ir.errors import ConfigError
from ostinato.tools.completion import among, complete_model, models_and

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_NO_DEVICE",
    "EXIT_USAGE",
    "MODE_NAMES",
    "PLANNED_SHAPES",
    "POLICY_NAMES",
    "CaptureOption",
    "ContextOption",
    "DeviceOption",
    "DisableOption",
    "EntryOption",
    "ExtensionOption",
    "JsonOption",
    "LogitsOption",
    "LongestOption",
    "MemoryLimitOption",
    "ModeOption",
    "ModelArgument",
    "ModelOption",
    "ModelOrRunArgument",
    "OwnShapesOption",
    "PolicyOption",
    "PrecisionOption",
    "SeedOption",
    "ShapesOption",
    "TargetOption",
    "ThreadsOption",
    "ToleranceOption",
    "chosen_model",
    "parse_dims",
    "parse_shapes",
    "refuse_unread",
]

MODE_NAMES = ("reference", "eager", "planned", "guarded", "captured")
POLICY_NAMES = ("strict", "batch_invariant", "balanced", "fast")
"""What shells complete to; the words themselves are the runtime's and the passes', whose modules take longer to load than a shell should wait."""
PLANNED_SHAPES = "B=1,T=1,512"
"""What is planned, or drawn, unless --shapes says otherwise: one sequence, a token or 512 of them at a time."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_DEVICE = 3
EXIT_INTERRUPTED = 130

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_model,
        help="A Hugging Face directory, a .gguf file, the name of an installed model package (smollm2, minilm), or (where it is run) an artifact (.ost).",
    ),
]
ModelOrRunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=models_and(".toml"),
        help="A Hugging Face directory, a .gguf file, the name of an installed model package, an artifact (.ost), or the .toml file of a training run.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_model,
        help="The same as the argument MODEL.",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        autocompletion=among("auto", "cpu", "hip"),
        help="auto (the first GPU, or the CPU where there is none or --threads is given), cpu, or hip[:N] for a GPU of either vendor.",
    ),
]
ModeOption = Annotated[
    str,
    typer.Option(
        "--mode",
        autocompletion=among("auto", *MODE_NAMES),
        help="auto, reference, eager, planned, guarded (every byte watched), or captured (GPUs).",
    ),
]
CaptureOption = Annotated[
    list[str] | None,
    typer.Option(
        "--capture",
        metavar="PATTERN",
        show_default=False,
        help="Capture only steps of nodes that are so named, like layers.0 or ffn; may be given several times.",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        autocompletion=among(*POLICY_NAMES),
        help="Numerics: strict (the reference's), batch_invariant (the same bits in any batch), balanced, or fast.",
    ),
]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        autocompletion=among("host", "gfx942", "sm_90"),
        metavar="NAME",
        help="host (the CPU), or the architecture of a GPU, which need not be here: gfx942, sm_90.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        autocompletion=among("auto", "f32", "bf16", "bf16_results"),
        help="auto (the checkpoint's own), f32, bf16 or bf16_results; of some projections: bf16\\[gate,up].",
    ),
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", min=0, help="Threads of the CPU; 0: one for each physical core.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        show_default=False,
        help="Positions of the cache for each sequence; default: chosen from the model.",
    ),
]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        show_default=False,
        help="Most that activations may take, such as 64M or 1.5GiB; values that do not fit are computed again.",
    ),
]
LogitsOption = Annotated[
    str,
    typer.Option(
        "--logits", autocompletion=among("last", "all"), help="last (one row a sequence) or all (one a token)."
    ),
]
EntryOption = Annotated[
    str | None,
    typer.Option(
        "--entry",
        autocompletion=among("step", "forward", "decode", "embed"),
        show_default=False,
        help="step (token-packed over a cache: what runs) or forward (dense, whole sequences) of a decoder, embed of an encoder.",
    ),
]
DisableOption = Annotated[
    list[str] | None,
    typer.Option(
        "--disable", metavar="PASS", show_default=False, help="Leave an optional pass out; may be given several times."
    ),
]
ExtensionOption = Annotated[
    str,
    typer.Option(
        "--extension",
        metavar="MODULE:FUNCTION",
        show_default=False,
        help="A function without arguments that adds operators and rows of your own (ostinato.extend); also FILE.py:FUNCTION.",
    ),
]
LongestOption = Annotated[
    int | None,
    typer.Option("--tokens", min=1, show_default=False, help="Length of the longest sequence; default 16."),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        min=0.0,
        show_default=False,
        help="Allowed where bits may differ, in standard deviations of the outputs; default: as the dtypes have it.",
    ),
]
ShapesOption = Annotated[str, typer.Option("--shapes", help="Buckets to compile, name=sizes: B=1,T=128,512.")]
OwnShapesOption = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        show_default=False,
        help="Buckets to compile, name=sizes: B=1,T=128,512; default: those that the work needs.",
    ),
]


def chosen_model(argument: str | None, option: str | None) -> str:
    """The one model named by the argument or by `--model`; raises `typer.BadParameter` for none or for two."""
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"two models were given: {argument} and --model {option}")
    found = argument if argument is not None else option
    if not found:
        raise typer.BadParameter("a model is needed: a directory, a .gguf file or a name such as smollm2")
    return found


def refuse_unread(invocation: typer.Context, what: str, read: Collection[str], mend: str = "leave them out") -> None:
    """Raises `ConfigError` for options that were given and that this use of the command would leave unread.

    `what` says which use it is ("smollm2 is a model"), `read` names the parameters that it reads, and `mend` is what to do.
    """
    unread = [
        parameter.opts[0]
        for parameter in invocation.command.params
        if parameter.name not in read
        and getattr(invocation.get_parameter_source(parameter.name or ""), "name", "") == "COMMANDLINE"
    ]
    if unread:
        raise ConfigError(
            f"{what}, which does not take {', '.join(unread)}",
            hint=f"{mend}; `{invocation.command_path} --help` says what each is for",
        )


def parse_shapes(text: str) -> dict[str, list[int]]:
    """`B=1,T=128,512` as {"B": [1], "T": [128, 512]}; raises `ConfigError` saying what was found."""
    hint = "write name=size[,size...][,name=...], for example B=1,T=128,512"
    found: dict[str, list[int]] = {}
    current: list[int] | None = None
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        if equals:
            if not name.strip().isidentifier():
                raise ConfigError(f"{name.strip()!r} is not the name of a dimension", node=text, hint=hint)
            if name.strip() in found:
                raise ConfigError(f"dimension {name.strip()} is given twice", node=text, hint=hint)
            current = found.setdefault(name.strip(), [])
        if current is None:
            raise ConfigError(f"{part!r} has no dimension", node=text, hint=hint)
        digits = number.strip()
        if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
            raise ConfigError(f"expected a positive number, found {digits!r}", node=text, hint=hint)
        current.append(int(digits))
    return found


def parse_dims(text: str) -> dict[str, int]:
    """`N=128,R=1` as {"N": 128, "R": 1}; raises `ConfigError` for anything else."""
    sizes = parse_shapes(text)
    if several := [name for name, values in sizes.items() if len(values) > 1]:
        raise ConfigError(f"dimensions {several} have several sizes", node=text, hint="give one size each: N=128,R=1")
    return {name: values[0] for name, values in sizes.items()}
