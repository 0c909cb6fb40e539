"""Under which licence a model folder says that its weights are."""

from __future__ import annotations

from pathlib import Path

import yaml

from workers.models.fetch import read_manifest


def model_licence(folder: Path) -> str:
    """As our manifest has it, else the front matter of the folder's README.md; empty where neither says it."""
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest.licence
    try:
        before, front, *_ = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
        said = yaml.safe_load(front)
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    licence = said.get("license") if isinstance(said, dict) and not before.strip() else None
    return licence if isinstance(licence, str) else ""
