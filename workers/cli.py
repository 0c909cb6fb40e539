"""The `kadence` command: everything put together, nothing heavy imported before it is needed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from workers.lazy_group import LazyGroup

OUR_PACKAGES = ("controlplane", "workers", "dashboard", "kernels")
EXIT_BAD, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="kadence",
    help="Serves language models with speculative decoding and tunes K for every cohort.",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[Path | None, typer.Option(help="YAML file of settings.", envvar="KADENCE_CONFIG")]
Policy = Annotated[Path | None, typer.Option(help="Policy file. [policies.yaml]")]
Prices = Annotated[Path | None, typer.Option(help="Price sheet. [prices.yaml]")]
Model = Annotated[str | None, typer.Option(help="Known name, local folder or hub id. [smollm2-135m-instruct]")]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="auto, ngram, none, draft_model:<folder or id>, eagle, medusa or draft[:<folder>]; "
        "ngram+ before these four. [auto]"
    ),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda. [auto]")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16. [auto]")]
Quantization = Annotated[str | None, typer.Option(help="none, or int8 for the model's linear layers on a CPU. [none]")]
Host = Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port of the endpoint. [8000]")]
DashboardPort = Annotated[int | None, typer.Option(help="Port of the dashboard. [8501]")]
Replicas = Annotated[int | None, typer.Option(help="Workers behind the endpoint. [1]")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of a worker; 0 = all physical cores. [0]")]
DatabaseUrl = Annotated[str | None, typer.Option(help="SQLAlchemy URL. [sqlite:///<home>/kadence.db]")]
LogFormat = Annotated[str | None, typer.Option(help="Of the lines in <home>/logs/kadence.log: json or console. [json]")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kadence {importlib.metadata.version('kadence')}")
        raise typer.Exit


@app.callback()
def _kadence(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _foreground(start: Callable[[Any], None]) -> Callable[..., None]:
    """A command with every option of serving, that starts something and stays in the foreground."""

    def command(
        config: Config = None,
        policy: Policy = None,
        prices: Prices = None,
        model: Model = None,
        drafter: Drafter = None,
        device: Device = None,
        dtype: Dtype = None,
        quantization: Quantization = None,
        host: Host = None,
        port: Port = None,
        dashboard_port: DashboardPort = None,
        replicas: Replicas = None,
        threads: Threads = None,
        database_url: DatabaseUrl = None,
        log_format: LogFormat = None,
        log_level: LogLevel = None,
    ) -> None:
        flags = locals()
        del flags["start"]
        start(_settings(**flags))

    return command


def _up(settings: Any) -> None:
    from workers import serving

    serving.up(settings)


def _serve(settings: Any) -> None:
    from workers import serving

    serving.serve(settings)


UP = "Everything, in the foreground: database, endpoint and dashboard. Ctrl-C stops it all."
app.command("up", help=UP)(_foreground(_up))
app.command("serve", help="The OpenAI-compatible endpoint alone, in the foreground.")(_foreground(_serve))


@app.command()
def dashboard(
    config: Config = None,
    prices: Prices = None,
    dashboard_port: DashboardPort = None,
    database_url: DatabaseUrl = None,
) -> None:
    """The dashboard alone; it reads the database and nothing else."""
    settings = _settings(**locals())
    from dashboard.launch import run_dashboard

    process = run_dashboard(settings)
    try:
        code = process.wait()
    finally:
        process.terminate()
    raise typer.Exit(EXIT_BAD if code else 0)


@app.command()
def doctor(
    config: Config = None,
    policy: Policy = None,
    prices: Prices = None,
    model: Model = None,
    drafter: Drafter = None,
    device: Device = None,
    host: Host = None,
    port: Port = None,
    dashboard_port: DashboardPort = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and this set-up, and say what to do about each problem."""
    flags = locals()
    del flags["as_json"]
    settings = _settings(**flags)
    from workers.doctor import examine, print_report

    checks = examine(settings)
    good = all(check.ok for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": good, "checks": [check.as_dict() for check in checks]}))
    else:
        print_report(checks)
    raise typer.Exit(0 if good else EXIT_BAD)


def main() -> int:
    """Entry point of the `kadence` program; the exit code."""
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """Run one command: 0 good, 1 the checked thing is bad or it failed, 2 wrong use. Never a traceback."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="kadence", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `kadence ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BAD
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    """Print `error` as `kadence: error: ...`, one line a problem, and say which exit code it deserves."""
    if os.environ.get("KADENCE_DEBUG"):
        traceback.print_exception(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(str(error.format_message()), err=True)  # type: ignore[attr-defined]
        return EXIT_USAGE
    for line in describe(error).splitlines():
        print(f"kadence: error: {line}", file=sys.stderr)
    wrong_use = hasattr(error, "format_message") or type(error).__name__ == "SettingsError"
    return EXIT_USAGE if wrong_use else EXIT_BAD


def describe(error: Exception) -> str:
    """What to tell the user of `error`: our own errors and the system's explain themselves, others are bugs."""
    if hasattr(error, "format_message"):  # of the command line's parser
        context = getattr(error, "ctx", None)
        hint = f"; see: {context.command_path} --help" if context else ""
        return f"{error.format_message().rstrip('.')}{hint}".replace("\n", " ")
    if type(error).__module__.partition(".")[0] in OUR_PACKAGES:
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    text = " ".join(str(error).split())
    return f"unexpected {type(error).__name__}: {text} (KADENCE_DEBUG=1 shows where)"


def _settings(**flags: Any) -> Any:
    from controlplane.settings import load_settings

    return load_settings(**flags)
