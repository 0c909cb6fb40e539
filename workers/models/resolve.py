"""What `--model` may be, as a folder on disk: a known name, a local folder, or an id on the model hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

from workers.first_line import first_line
from workers.models.fetch import OnProgress, fetch_model, is_fetched, model_folder
from workers.models.registry import KNOWN_MODELS, ModelError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
WEIGHTS_INDEX = "model.safetensors.index.json"
TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))


def resolve_model(
    name: str,
    cache: Path,
    *,
    fetch_missing: bool = True,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> Path:
    """The folder of `name`, with config, weights and tokenizer in it. Raises ModelError, one line.

    What is missing is fetched, unless `fetch_missing` is off: a known name into `cache`, a hub id into the hub's own
    cache.
    """
    for model in KNOWN_MODELS:
        if model.name == name:
            if fetch_missing:
                return fetch_model(model, cache, on_progress=on_progress)
            if is_fetched(model, cache):
                return model_folder(name, cache)
            raise ModelError(f"model {name} is not in {cache}; run: kadence model fetch {name}")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return check_model_folder(folder)
    if folder.exists():
        raise ModelError(f"model {name!r} is a file; give the folder that holds config.json, weights and tokenizer")
    if name.startswith(("/", ".", "~")):
        raise ModelError(f"model folder {name} does not exist")
    if HUB_ID.fullmatch(name):
        return check_model_folder(_from_hub(name, only_local=not fetch_missing))
    known = ", ".join(model.name for model in KNOWN_MODELS)
    raise ModelError(f"unknown model {name!r}; known: {known}; or give a local folder or a hub id (organisation/name)")


def check_model_folder(folder: Path) -> Path:
    """`folder`, if a causal model can be loaded from it; raises ModelError naming what is missing."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    missing += _missing_weights(folder)
    if not any(all((folder / name).is_file() for name in names) for names in TOKENIZERS):
        missing.append("a tokenizer (tokenizer.json, tokenizer.model, or vocab.json with merges.txt)")
    if missing:
        raise ModelError(f"model folder {folder} lacks {', '.join(missing)}")
    return folder.resolve()


def _missing_weights(folder: Path) -> list[str]:
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, LookupError, AttributeError, TypeError):
            return [f"a readable {WEIGHTS_INDEX}"]
        return [shard for shard in shards if not (folder / shard).is_file()]
    return [] if any(folder.glob("*.safetensors")) else ["weights (model.safetensors)"]


def _from_hub(name: str, only_local: bool) -> Path:
    # Imported here: it takes half a second, and most models are known or local.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), local_files_only=only_local))
    except Exception as error:  # the hub's client raises its own, its HTTP library's and the system's errors
        raise ModelError(
            f"cannot get {name} from the model hub ({type(error).__name__}: {first_line(error)[:200]}); "
            "check the name and the network, or give a local folder"
        ) from error
