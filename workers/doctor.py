"""`kadence doctor`: each thing that serving needs, looked at by a function of its own.

A check that is not ok makes the command fail. One that is ok may still carry a `fix`: something that would be better.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from controlplane.drafter_choice import AUTO, DrafterChoice
from controlplane.ports import bind_problem
from controlplane.settings import Settings, physical_cores, reachable_host

PYTHON = ((3, 11), (3, 14))
LEAST_DISK_BYTES = 1_000_000_000
LEAST_MEMORY_BYTES = 2_000_000_000
PROBE_TIMEOUT_S = 2.0
DASHBOARD_HOST = "127.0.0.1"
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Check:
    """What was found. fix: what to do about it, empty where nothing needs doing."""

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine(settings: Settings) -> list[Check]:
    """Every check, in the order in which a set-up is put right. None raises: a failure to look is a finding."""
    device = _device(settings)
    checks: dict[str, Callable[[], Check]] = {
        "python": check_python,
        "torch": partial(check_package, "torch"),
        "transformers": partial(check_package, "transformers"),
        "ray": partial(check_package, "ray"),
        "device": partial(check_device, settings.device),
        "threads": partial(check_threads, settings),
        "compiler": partial(check_compiler, settings, device),
        "triton": partial(check_triton, device),
        "kernels": check_kernels,
        "model": partial(check_model, settings),
        "drafter": partial(check_drafter, settings),
        "database": partial(check_database, settings.database_url),
        "alerts": partial(check_alerts, settings.database_url),
        "policy": partial(check_policy, settings.policy),
        "keys": partial(check_keys, settings),
        "prices": partial(check_prices, settings.prices),
        "energy": partial(check_energy, settings, device),
        "port": partial(check_port, "port", settings.host, settings.port, "/v1/models", "kadence serve"),
        "dashboard_port": partial(
            check_port, "dashboard_port", DASHBOARD_HOST, settings.dashboard_port, "/_stcore/health", "the dashboard"
        ),
        "disk": partial(check_disk, settings),
        "memory": check_memory,
    }
    return [_looked_at(name, check) for name, check in checks.items()]


def print_report(checks: list[Check]) -> None:
    """One line a check, and below it what to do."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for check in checks:
        mark, style = ("ok  ", "green") if check.ok else ("FAIL", "bold red")
        console.print(Text.assemble((mark, style), f"  {check.name:<15} {check.detail}"))
        if check.fix:
            console.print(Text(f"{'':21} -> {check.fix}", style="yellow"))


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    least, below = PYTHON
    text = ".".join(map(str, version))
    if least <= version[:2] < below:
        return Check("python", True, text)
    return Check("python", False, text, f"use Python {least[0]}.{least[1]} to {below[0]}.{below[1] - 1}")


def check_package(name: str) -> Check:
    """Installed, importable, and of a release that this version of Kadence was made for."""
    from packaging.requirements import Requirement

    needed = next((r for r in map(Requirement, importlib.metadata.requires("kadence") or ()) if r.name == name), None)
    reinstall = f"pip install '{needed}'" if needed else f"pip install {name}"
    if importlib.util.find_spec(name) is None:
        return Check(name, False, "not installed", reinstall)
    version = importlib.metadata.version(name)
    if needed and not needed.specifier.contains(version, prereleases=True):
        return Check(name, False, f"{version}, but {needed.specifier} is needed", reinstall)
    return Check(name, True, version)


def check_device(wanted: str) -> Check:
    import torch

    gpus = torch.cuda.device_count()
    if gpus:
        return Check("device", True, f"{gpus} x {torch.cuda.get_device_name(0)}" if wanted != "cpu" else "cpu, as set")
    if wanted == "cuda":
        return Check("device", False, "cuda is set and torch sees no GPU", "install a driver, or --device cpu")
    return Check("device", True, "cpu")


def check_threads(settings: Settings) -> Check:
    cores, threads = physical_cores(), settings.worker_threads * settings.replicas
    detail = f"{settings.replicas} worker(s) x {settings.worker_threads} thread(s) on {cores} physical core(s)"
    return Check("threads", True, detail, f"--threads {max(cores // settings.replicas, 1)}" if threads > cores else "")


def check_compiler(settings: Settings, device: str) -> Check:
    """For the compiled step on a CPU and for Triton on a GPU; without one, the step stays eager."""
    found = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++"))), None)
    on_cpu = device == "cpu"
    if found is not None:
        use = "the step stays eager (compile: off)" if settings.compile == "off" else "the step is compiled with it"
        return Check("compiler", True, f"{found}: {use}" if on_cpu else found)
    effect = ": the step stays eager, which takes twice as long" if on_cpu else ""
    why = "for the compiled step" if on_cpu else "for Triton"
    advice = f"install g++ (Debian, Ubuntu: apt-get install g++) {why}"
    if on_cpu and settings.quantization != "none":
        return Check("compiler", False, f"no C++ compiler, which quantization: {settings.quantization} needs", advice)
    return Check("compiler", True, f"no C++ compiler{effect}", advice)


def check_triton(device: str) -> Check:
    if importlib.util.find_spec("triton") is not None:
        return Check("triton", True, importlib.metadata.version("triton"))
    if device == "cpu":
        return Check("triton", True, "not installed, and not needed on the CPU")
    return Check("triton", False, "not installed", "pip install 'kadence[gpu]'")


def check_kernels() -> Check:
    """Our folder `kernels` has the name of an optional package that transformers looks for."""
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return Check("kernels", True, "ours")
    return Check("kernels", False, f"another package named kernels ({version}) is installed", "pip uninstall kernels")


def check_model(settings: Settings) -> Check:
    """The model is on this machine, whole, and hashes to what it did when it was converted."""
    from workers.models.download import sha256
    from workers.models.fetch import read_manifest
    from workers.models.registry import ModelError
    from workers.models.resolve import resolve_model

    try:
        folder = resolve_model(settings.model, settings.model_cache, fetch_missing=False)
    except ModelError as error:
        message, _, fix = str(error).partition("; run: ")
        return Check("model", False, message, fix or "give a known name, a local folder or a hub id with --model")
    manifest = read_manifest(folder)
    if manifest is None:
        return Check("model", True, f"{folder} (not fetched by us: no hash to check)")
    if sha256(folder / "model.safetensors") != manifest.weights_sha256:
        return Check("model", False, f"{folder}: the weights have changed", f"rm -r {folder} and fetch it again")
    return Check("model", True, f"{folder} (hash as converted from {manifest.source})")


def check_drafter(settings: Settings) -> Check:
    """Which drafter a worker would use and why; that it is of this model."""
    from workers.build import check_models, used_drafter
    from workers.models.registry import ModelError
    from workers.models.resolve import resolve_model
    from workers.proposers.shipped import how_to_train

    try:
        resolve_model(settings.model, settings.model_cache, fetch_missing=False)
    except ModelError:  # check_model says what is wrong with it
        return Check("drafter", True, f"{settings.drafter}; more can be told once the model is here")
    try:
        used = used_drafter(settings)
        if used.choice.is_trained:
            check_models(settings)
    except ValueError as error:  # DrafterError or UnsupportedModel: a line each
        return Check("drafter", False, *_detail_and_fix(str(error), "--drafter auto, or ngram"))
    trained = "" if used.shipped or used.asked.kind != AUTO else how_to_train(DrafterChoice("eagle"), settings.model)
    return Check("drafter", True, used.said, trained)


def _detail_and_fix(message: str, default: str) -> tuple[str, str]:
    """The part behind a semicolon says what to do."""
    detail, _, fix = " ".join(message.split()).rpartition("; ")
    return (detail, fix) if detail else (fix, default)


def check_database(url: str) -> Check:
    from controlplane.store.queries import database_state

    state = database_state(url)
    fixes = {
        "ok": "",
        "missing": "kadence db upgrade (kadence up does it too)",
        "empty": "kadence db upgrade (kadence up does it too)",
        "older": "kadence db upgrade (kadence up does it too)",
        "newer": "this Kadence is older than the database: upgrade it, or use another --database-url",
    }
    return Check("database", state == "ok", f"{_without_password(url)}: {state}", fixes.get(state, "--database-url"))


def check_alerts(url: str) -> Check:
    """Alerts that no operator has cleared."""
    from controlplane.store.alerts import alert_log
    from controlplane.store.queries import database_state, open_ledger

    if database_state(url) != "ok":
        return Check("alerts", True, "none can be on record")
    engine = open_ledger(url)
    try:
        active = alert_log(engine, "active")
    finally:
        engine.dispose()
    if not active:
        return Check("alerts", True, "none active")
    first, *others = active
    more = f" (and {len(others)} more)" if others else ""
    fix = f"find out why, then: kadence alerts clear {first.name} --why '...'"
    return Check("alerts", False, f"{first.name}: {first.detail}{more}", fix)


def check_policy(path: Path) -> Check:
    from controlplane.policy import PolicyError, load_policy

    try:
        policy = load_policy(path)
    except (PolicyError, OSError) as error:
        first, *others = str(error).splitlines()
        more = f" (and {len(others)} more)" if others else ""
        return Check("policy", False, f"{first}{more}", f"kadence policy check {path}")
    return Check("policy", True, f"{path}: {len(policy.cohorts)} cohorts", "; ".join(policy.warnings))


def check_keys(settings: Settings) -> Check:
    """Whether API keys are in force, and whether each leads somewhere."""
    from controlplane.policy import PolicyError, load_policy
    from workers.key_report import MAKE_ONE, report_keys

    try:
        cohorts = [cohort.name for cohort in load_policy(settings.policy).cohorts]
    except (PolicyError, OSError):  # check_policy says what is wrong with it
        cohorts = []
    report = report_keys(settings, cohorts)
    if report.are_in_force and not report.valid:
        return Check("keys", False, f"{report.said}: nobody is served", MAKE_ONE)
    lost = ", ".join(report.lost) if cohorts else ""
    return Check("keys", True, report.said, f"{lost}: bound to a cohort that the policy does not have" if lost else "")


def check_prices(path: Path) -> Check:
    from controlplane.finops.pricing import PriceError, load_prices

    try:
        sheet = load_prices(path)
    except (PriceError, OSError) as error:
        return Check("prices", False, " ".join(str(error).split()), "kadence cost prices check, or --prices FILE")
    remarks = len(sheet.remarks(time.time()))
    advice = f"{remarks} warnings (missing periods, old prices): kadence cost prices check" if remarks else ""
    return Check("prices", True, f"{path}: {len(sheet.prices)} prices", advice)


def check_energy(settings: Settings, device: str) -> Check:
    """The source that a worker would use, and why it is not a better one."""
    from workers.energy import open_reader

    meter = open_reader(settings, device)
    meter.close()
    fix = "" if meter.source != "none" else "for an estimate, set energy_model_idle_w and energy_model_tdp_w"
    return Check("energy", True, f"source {meter.source}: {meter.detail}", fix)


def check_port(name: str, host: str, port: int, path: str, owner: str) -> Check:
    """Free, or already ours: `path` answers as `owner` does."""
    reason = bind_problem(host, port)
    if reason is None:
        return Check(name, True, f"{host}:{port} is free")
    try:
        url = f"http://{reachable_host(host)}:{port}{path}"
        answer = httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False)
        ours = answer.status_code == 200 and (path != "/v1/models" or "kadence" in answer.text)
    except httpx.HTTPError:
        ours = False
    if ours:
        return Check(name, True, f"{host}:{port} is served by {owner}")
    return Check(name, False, f"{host}:{port}: {reason}", f"stop that program, or --{name.replace('_', '-')} N")


def check_disk(settings: Settings) -> Check:
    """Room for a model and for the database."""
    free = {}
    for path in (settings.model_cache, settings.home):
        there = next(p for p in (path, *path.parents) if p.exists())
        free[path] = shutil.disk_usage(there).free
    detail = ", ".join(f"{size / 1e9:.1f} GB free for {path}" for path, size in free.items())
    enough = min(free.values()) >= LEAST_DISK_BYTES
    return Check("disk", enough, detail, "" if enough else "free 1 GB, or set KADENCE_HOME and KADENCE_MODEL_CACHE")


def check_memory(meminfo: Path = MEMINFO) -> Check:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return Check("memory", True, "cannot be told on this system")
    enough = available >= LEAST_MEMORY_BYTES
    return Check("memory", enough, f"{available / 1e9:.1f} GB available", "" if enough else "close other programs")


def _looked_at(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        text = " ".join(str(error).split())
        return Check(name, False, f"cannot be checked: {type(error).__name__}: {text}", "reinstall with `make setup`")


def _device(settings: Settings) -> str:
    """The torch device that serving would use; "cpu" where torch cannot say."""
    if settings.device != "auto":
        return settings.device
    try:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    except Exception:  # check_package says what is wrong with torch
        return "cpu"


def _without_password(url: str) -> str:
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@") if password else url
