"""Put an engine together from settings: the composition root of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import torch
from transformers import AutoConfig, AutoTokenizer

from controlplane.drafter_choice import DrafterChoice
from controlplane.policy import Policy
from controlplane.settings import Settings
from workers.attention import IMPLEMENTATION
from workers.batch_invariance import install
from workers.compiled.background import adopt_compiled
from workers.compiled.quantization import check_quantization
from workers.energy import energy_sampler
from workers.engine import Engine
from workers.freed_memory import give_back_freed_memory
from workers.latency_profile import LatencyProfile, step_sizes
from workers.meter import Meter
from workers.model_runner import ModelRunner
from workers.model_support import UnsupportedModel, check_config
from workers.models.resolve import resolve_model
from workers.models.weights_hash import weights_sha256
from workers.plan_client import PlanClient, unplanned
from workers.proposers.base import Proposer, drafter_label
from workers.proposers.combined import MIN_MATCH, NGramFirstProposer
from workers.proposers.draft_model import DraftModelProposer, check_vocabulary
from workers.proposers.drafter_folder import check_target, identify, load_eagle, load_medusa, load_student, read_card
from workers.proposers.eagle import EagleProposer, SharedWeights
from workers.proposers.medusa import MedusaProposer
from workers.proposers.ngram import NGramProposer
from workers.proposers.none import NoProposer
from workers.proposers.shipped import ResolvedDrafter, resolve_drafter
from workers.proposers.student_model import assembled
from workers.shadow import ShadowDrafts
from workers.step_recording import record_steps
from workers.target import Target
from workers.token_tree import read_trees
from workers.verifier import Verifier

log = structlog.get_logger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
VERSION_DIGITS = 12
"""Of the sha256 of a draft model's weights: enough to tell them apart."""


class DeviceError(ValueError):
    """The device that was asked for is not there."""


def choose_device(device: str) -> torch.device:
    """Raises DeviceError when CUDA is asked for and absent."""
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device: cuda was asked for, but torch sees no GPU; use --device cpu or auto")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """As named; auto is bfloat16, and float16 on a GPU that has no arithmetic of it.

    Raises DeviceError where such a GPU is asked for bfloat16.
    """
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        if dtype == "bfloat16":
            raise DeviceError("dtype: bfloat16 was asked for, which this GPU does not compute; use float16 or auto")
        return torch.float16 if dtype == "auto" else DTYPES[dtype]
    return torch.bfloat16 if dtype == "auto" else DTYPES[dtype]


def gpu_uuid(device: torch.device) -> str | None:
    """A CUDA device's UUID, as NVML writes it: CUDA may number boards by speed, and NVML does by slot."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None


def used_drafter(settings: Settings) -> ResolvedDrafter:
    """What `drafter` comes to with this model. Raises ModelError or DrafterError."""
    folder = resolve_model(settings.model, settings.model_cache)
    return resolve_drafter(settings.drafter_choice, settings.model, folder, settings.model_cache)


def check_models(settings: Settings) -> None:
    """What configurations and tokenizers alone can tell, in a second and without weights: raises as `build_engine`."""
    check_quantization(settings, choose_device(settings.device))
    folder = resolve_model(settings.model, settings.model_cache)
    check_config(AutoConfig.from_pretrained(folder), settings.model)
    choice = used_drafter(settings).choice
    if choice.is_trained:
        drafter = Path(choice.where)
        check_target(drafter, read_card(drafter, choice.kind), identify(settings.model, folder, settings.model_cache))
    elif choice.kind == "draft_model":
        draft = resolve_model(choice.where, settings.model_cache)
        check_config(AutoConfig.from_pretrained(draft), choice.where)
        check_vocabulary(AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(draft))


def build_engine(
    settings: Settings, policy: Policy, worker: str, clock: Callable[[], float] = time.time
) -> tuple[Engine, Any]:
    """Load the models of `settings` and return the engine and its tokenizer.

    Raises DeviceError, QuantizationError, UnsupportedModel, ModelError or VocabularyMismatch, each one line on what to
    change.
    """
    # Ray gives a process one thread by default; speed and rounding depend on the number, so it is always explicit.
    torch.set_num_threads(settings.worker_threads)
    device = choose_device(settings.device)
    check_quantization(settings, device)
    dtype = choose_dtype(settings.dtype, device)
    if device.type == "cuda" and not install(device):
        log.warning("last bits of a row may depend on the batch", reason="Triton is not installed")
    folder = resolve_model(settings.model, settings.model_cache)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    runner = _load(folder, settings, device, dtype, settings.model, is_target=True)
    proposer = build_proposer(settings, runner, tokenizer, device, dtype)
    give_back_freed_memory()
    sku = settings.price_key(torch.cuda.get_device_name(device) if device.type == "cuda" else None)
    label = drafter_label(proposer)
    energy = energy_sampler(settings, device.type, time.monotonic(), gpu_uuid(device))
    energy.start()
    meter = Meter(worker, time.time_ns(), settings.model_label, label, sku, clock, energy.read_energy, time.monotonic)
    rungs = {k for cohort in policy.cohorts for k in cohort.speculation.ladder}
    engine = Engine(
        Target(runner, proposer.feature_layers),
        proposer,
        Verifier(sorted(runner.eos_token_ids), rule=settings.verification),
        PlanClient(unplanned(policy), clock, worker, label, padded=runner.padded),
        meter,
        tokenizer,
        runner.eos_token_ids,
        clock,
        shadow=None if proposer.name == "none" else ShadowDrafts(proposer, meter.count_shadow, max(rungs)),
        prefix_cache=settings.prefix_cache,
        trees=settings.trees,
    )
    if device.type == "cuda" and settings.cuda_graphs:
        record_steps(engine, rungs if proposer.name != "none" else ())
    sizes = step_sizes(rungs if proposer.name != "none" else (), settings.max_sequences, runner.context)
    engine.energy = energy
    engine.new_profile = lambda: LatencyProfile(sizes, engine.rehearse, settings.profile_s)
    engine.profile = engine.new_profile()
    if settings.compile != "off":
        parts = (*runner.compilables, *proposer.compilables)
        engine.uncompiled = adopt_compiled(parts, settings.model_cache, engine.adopt, device, dtype)
    return engine, tokenizer


def build_proposer(
    settings: Settings, target: ModelRunner, tokenizer: Any, device: torch.device, dtype: torch.dtype
) -> Proposer:
    choice = used_drafter(settings).choice
    if choice.kind == "none":
        return NoProposer()
    if choice.kind == "ngram":
        return NGramProposer()
    if choice.is_trained:
        drafter = _trained(choice, settings, target)
    else:
        drafter = _draft_model(choice.where, settings, target, tokenizer, device, dtype)
    if not choice.ngram_first:
        return drafter
    measured = read_card(Path(choice.where)).min_match if choice.is_trained else None
    return NGramFirstProposer(drafter, measured or MIN_MATCH)


def _draft_model(
    where: str, settings: Settings, target: ModelRunner, tokenizer: Any, device: torch.device, dtype: torch.dtype
) -> Proposer:
    """A causal model of the target's tokens; where: its folder or hub id."""
    folder = resolve_model(where, settings.model_cache)
    check_vocabulary(tokenizer, AutoTokenizer.from_pretrained(folder))
    draft = _load(folder, settings, device, dtype, where)
    if draft.context < target.context:
        raise UnsupportedModel(
            f"drafter {where!r} was made for {draft.context} tokens, fewer than the {target.context} of the context; "
            f"set max_context to {draft.context} or use another drafter"
        )
    version = weights_sha256(folder, settings.model_cache)[:VERSION_DIGITS]
    return DraftModelProposer(draft, target.vocab_size, version=version)


def _trained(choice: DrafterChoice, settings: Settings, target: ModelRunner) -> Proposer:
    """A drafter from `kadence train`, that shares the target's weights."""
    folder = Path(choice.where)
    of = identify(settings.model, resolve_model(settings.model, settings.model_cache), settings.model_cache)
    version = weights_sha256(folder, settings.model_cache)[:VERSION_DIGITS]
    if choice.kind == "medusa":
        heads, vocabulary, card = load_medusa(folder, of)
        heads.to(target.device, target.dtype)
        trees = read_trees(card.trees)
        return MedusaProposer(heads, vocabulary, target.head, target.num_layers, version=version, trees=trees)
    if choice.kind == "draft":
        decoder, vocabulary, card = load_student(folder, of, target.config)
        head = target.head[vocabulary.to(target.device)]
        student = assembled(
            target.config, card.shape["layers"], decoder.state_dict(), target.embeddings, head, IMPLEMENTATION
        )
        runner = ModelRunner(student, settings.max_sequences, target.context, "draft")
        return DraftModelProposer(runner, target.vocab_size, "draft", version, vocabulary)
    layer, vocabulary, card = load_eagle(folder, of)
    layer.to(target.device, target.dtype)
    shared = SharedWeights(target.embeddings, target.head)
    trees = read_trees(card.trees)
    return EagleProposer(
        layer, vocabulary, shared, settings.max_sequences, target.context, version=version, trees=trees
    )


def _load(
    folder: Path, settings: Settings, device: torch.device, dtype: torch.dtype, name: str, is_target: bool = False
) -> ModelRunner:
    return ModelRunner.load(
        folder,
        num_slots=settings.max_sequences,
        context=settings.context,
        device=device,
        dtype=dtype,
        name=name,
        # A draft model has a slot of a whole context for each sequence.
        kv_tokens=settings.kv_cache_tokens if is_target else None,
        # Drafts are proposals, whose worth is measured: they stay as they were trained.
        quantization=settings.quantization if is_target else "none",
    )
