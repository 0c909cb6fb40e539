"""Settings of one Kadence process: command flags over KADENCE_ variables over a YAML file over defaults.

`load_settings` is the way in; it reports every bad value at once, each with where it came from and what to do.
No torch and no Ray here: whether there is a GPU is asked where one is needed.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from controlplane.drafter_choice import AUTO, DrafterChoice, parse_drafter
from controlplane.finops.carbon import zone_problem
from controlplane.model_label import Quantization, labelled

ENV_PREFIX = "KADENCE_"
DATABASE_SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg", "postgres", "sqlite+pysqlite")
PHYSICAL_CORES = Path("/sys/devices/system/cpu")


class SettingsError(ValueError):
    """One or more settings are wrong; one line a problem, each naming the field, its source and the fix."""


class Settings(BaseSettings):
    """Everything a process is told from outside. Paths are absolute once validated; times in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, protected_namespaces=(), env_ignore_empty=True
    )

    home: Path = Field(Path(".kadence"), description="folder of the database and of logs")
    database_url: str = Field("", description="SQLAlchemy URL; empty means sqlite:///<home>/kadence.db")
    policy: Path = Field(Path("policies.yaml"), description="the operator's policy file")
    policy_watch: bool = Field(True, description="apply the policy file whenever it changes")
    prices: Path = Field(Path("prices.yaml"), description="the price sheet")
    carbon_zone: str = Field("none", description="country (DEU, USA, ...) or world; none: carbon is not reported")
    pue: Decimal = Field(Decimal(1), ge=1, le=10, description="energy of the whole site over that of the machines")
    model: str = Field("smollm2-135m-instruct", min_length=1, description="known name, local folder or hub id")
    drafter: str = Field(
        AUTO,
        description="auto, ngram, none, draft_model:<folder or id>, eagle, medusa, draft[:<folder>], or ngram+ these",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Quantization = Field(
        "none", description="of the target's linear layers on a CPU: int8 halves them, and changes what it says"
    )
    compile: Literal["auto", "at_once", "off"] = Field(
        "auto", description="the CPU step: auto, in the background, for requests that begin later; at_once, for all"
    )
    cuda_graphs: bool = Field(True, description="a GPU's decode steps are recorded at the start, for every K and batch")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads of a worker; 0 means its share of the cores")
    sku: str = Field("auto", min_length=1, description="key into the price sheet; auto means cpu-<n>core or the GPU")
    host: str = Field("127.0.0.1", min_length=1)
    require_keys: Literal["auto", "always", "never"] = Field(
        "auto", description="of clients on this machine; auto: once a key was made, or where `host` is not loopback"
    )
    port: int = Field(8000, ge=1, le=65535)
    dashboard_host: str = Field("127.0.0.1", min_length=1, description="beyond loopback only with a login")
    dashboard_port: int = Field(8501, ge=1, le=65535)
    dashboard_refresh_s: float = Field(5.0, ge=1, le=3600, description="seconds between two readings of a page")
    dashboard_password: SecretStr | None = Field(
        None, description="asked before anything is shown, as it is or hashed by `python -m dashboard.access`"
    )
    dashboard_proxy_header: str | None = Field(
        None, description="header in which a trusted proxy names who has logged in"
    )
    dashboard_proxies: str | None = Field(
        None, description="addresses or networks of such proxies, with commas between"
    )
    replicas: int = Field(1, ge=1, le=1024, description="workers behind the ingress")
    holdout_replicas: int = Field(0, ge=0, le=1023, description="of them without a drafter; 0 leaves it to the policy")
    max_sequences: int = Field(8, ge=1, le=1024, description="sequences a worker runs at once")
    max_context: int = Field(2048, ge=16, le=1_048_576, description="tokens of prompt and completion together")
    kv_cache_tokens: int = Field(
        0, ge=0, le=1_000_000_000, description="tokens of KV a worker holds; 0: max_context for each of max_sequences"
    )
    prefix_cache: bool = Field(True, description="KV of a text serves the same tenant's texts that begin alike")
    trees: bool = Field(True, description="EAGLE and Medusa draft token trees where their card has one for the K")
    verification: Literal["token", "block"] = Field(
        "token", description="how chains of unseeded requests are verified: one token after the other, or as blocks"
    )
    queue_limit: int = Field(64, ge=0, le=1_000_000, description="requests that may wait before a 429")
    request_timeout_s: float = Field(600.0, gt=0, le=86_400, description="that an answer may take; then a 408")
    queue_wait_s: float = Field(60.0, gt=0, le=86_400, description="that a request may wait to begin; then a 429")
    stall_timeout_s: float = Field(60.0, gt=0, le=86_400, description="without progress, then a request is ended")
    drain_s: float = Field(60.0, ge=0, le=86_400, description="that requests may take to end after Ctrl-C")
    min_replicas: int = Field(1, ge=0, le=1024, description="fewest workers, where their number follows the load")
    max_replicas: int = Field(0, ge=0, le=1024, description="most workers; 0: always `replicas`")
    plan_ttl_s: float = Field(10.0, gt=0, le=3600, description="a plan older than this yields to the fallback K")
    tick_s: float = Field(1.0, gt=0, le=60, description="between two windows and two decisions")
    canary_share: float = Field(0.005, ge=0, le=0.5, description="of a worker's time, for the canary; 0 is off")
    profile_s: float = Field(3.0, ge=0, le=600, description="seconds of step timing while idle after start; 0 is off")
    energy_idle_w: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="watts of a worker's device with nothing running; unset: learned"
    )
    energy_model_idle_w: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="watts at rest, for an estimate where nothing measures energy"
    )
    energy_model_tdp_w: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="watts at full use, for that estimate; set both or neither"
    )
    energy_powercap: Path = Field(Path("/sys/class/powercap"), description="where the kernel shows RAPL counters")
    log_format: Literal["json", "console"] = Field("json", description="of the lines in <home>/logs/kadence.log")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="and above is logged")
    otlp_endpoint: str | None = Field(
        None, description="base URL of an OTLP/HTTP collector for traces and gen_ai metrics; unset: none are made"
    )
    retention_days: int = Field(30, ge=0, le=3650, description="windows and requests older than this go; 0 keeps all")
    model_cache: Path = Path("~/.cache/kadence/models")

    @field_validator("home", "policy", "prices", "model_cache", "energy_powercap")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        # Workers run in other folders than the command: a relative path would mean something else there.
        return Path(os.path.abspath(path.expanduser()))

    @field_validator("compile", mode="before")
    @classmethod
    def _off_in_yaml(cls, value: object) -> object:
        return "off" if value is False else value  # what YAML makes of a bare off

    @field_validator("database_url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        scheme, colon, _ = url.partition("://")
        if url and (not colon or scheme not in DATABASE_SCHEMES):
            raise ValueError(f"must be empty or start with {', '.join(s + '://' for s in DATABASE_SCHEMES)}")
        return url

    @field_validator("otlp_endpoint")
    @classmethod
    def _collector(cls, url: str | None) -> str | None:
        if url and not re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", url):
            raise ValueError("must be a URL such as http://127.0.0.1:4318")
        return url.rstrip("/") if url else None

    @field_validator("carbon_zone")
    @classmethod
    def _known_zone(cls, zone: str) -> str:
        if problem := zone_problem(zone):
            raise ValueError(problem)
        return zone

    @field_validator("dashboard_password")
    @classmethod
    def _usable_password(cls, password: SecretStr | None) -> SecretStr | None:
        text = password.get_secret_value() if password else ""
        if text.startswith("scrypt:") and not re.fullmatch(r"scrypt:[0-9a-f]{32}:[0-9a-f]{64}", text):
            raise ValueError("is not a hash as `python -m dashboard.access` prints it")
        if 0 < len(text) < 8:
            raise ValueError("must have 8 characters or more, or be empty for none")
        return password if text else None

    @field_validator("dashboard_proxies")
    @classmethod
    def _networks(cls, proxies: str | None) -> str | None:
        for each in filter(None, (part.strip() for part in (proxies or "").split(","))):
            try:
                ipaddress.ip_network(each, strict=False)
            except ValueError:
                raise ValueError("must be addresses or networks such as 127.0.0.1, 10.0.0.0/24") from None
        return proxies

    @field_validator("drafter")
    @classmethod
    def _known_drafter(cls, drafter: str) -> str:
        return str(parse_drafter(drafter))

    @model_validator(mode="before")
    @classmethod
    def _database_in_home(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("database_url"):
            # str(): a home of the wrong type is reported by its own field.
            home = Path(str(values.get("home") or cls.model_fields["home"].default)).expanduser()
            return {**values, "database_url": f"sqlite:///{os.path.abspath(home)}/kadence.db"}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.port == self.dashboard_port:
            raise ValueError(f"port and dashboard_port are both {self.port}; give each its own")
        if bool(self.dashboard_proxy_header) != bool(self.dashboard_proxies):
            missing = "dashboard_proxies" if self.dashboard_proxy_header else "dashboard_proxy_header"
            raise ValueError(f"{missing} is missing: set dashboard_proxy_header and dashboard_proxies, or neither")
        if self.holdout_replicas and self.holdout_replicas >= self.replicas:
            raise ValueError(
                f"holdout_replicas ({self.holdout_replicas}) must be under replicas ({self.replicas}): one must draft"
            )
        if self.max_replicas and not self.min_replicas <= self.replicas <= self.max_replicas:
            raise ValueError(
                f"replicas ({self.replicas}) must be from min_replicas ({self.min_replicas}) to max_replicas "
                f"({self.max_replicas}): it is the number to start with"
            )
        if self.max_replicas and self.holdout_replicas:
            raise ValueError("holdout_replicas needs a fixed number of workers: set max_replicas to 0")
        if self.plan_ttl_s <= self.tick_s:
            raise ValueError(
                f"plan_ttl_s ({self.plan_ttl_s:g}) must be over tick_s ({self.tick_s:g}), or every plan expires unused"
            )
        idle_w, tdp_w = self.energy_model_idle_w, self.energy_model_tdp_w
        if (idle_w is None) != (tdp_w is None):
            missing = "energy_model_idle_w" if idle_w is None else "energy_model_tdp_w"
            raise ValueError(f"{missing} is missing: set energy_model_idle_w and energy_model_tdp_w, or neither")
        if idle_w is not None and tdp_w is not None and tdp_w <= idle_w:
            raise ValueError(f"energy_model_tdp_w ({tdp_w:g}) must be over energy_model_idle_w ({idle_w:g})")
        return self

    @property
    def drafter_choice(self) -> DrafterChoice:
        """`drafter`, read."""
        return parse_drafter(self.drafter)

    @property
    def model_label(self) -> str:
        """What windows, requests and bills call the model: other weights are another name. Clients say `model`."""
        return labelled(self.model, self.quantization)

    @property
    def url(self) -> str:
        """Where clients reach the endpoint."""
        return f"http://{reachable_host(self.host)}:{self.port}"

    @property
    def keys_demanded(self) -> bool | None:
        """Whether inference wants an API key also of clients on this machine; None: once one was made."""
        if self.require_keys != "auto":
            return self.require_keys == "always"
        return None if is_loopback_host(self.host) else True

    @property
    def dashboard_url(self) -> str:
        """Where the dashboard is: on loopback, unless `dashboard_host` says otherwise, whatever `host` is."""
        return f"http://{reachable_host(self.dashboard_host)}:{self.dashboard_port}"

    @property
    def worker_threads(self) -> int:
        """CPU threads of one worker: as set, or its share of the physical cores this process may use."""
        return self.threads or max(1, physical_cores() // max(self.replicas, self.max_replicas))

    @property
    def context(self) -> int:
        """Tokens of prompt and completion together that a worker has room for; a model may be made for less."""
        return min(self.max_context, self.kv_cache_tokens) if self.kv_cache_tokens else self.max_context

    @property
    def admission_limit(self) -> int:
        """Requests that one worker takes in, running and waiting together."""
        return self.max_sequences + self.queue_limit

    def price_key(self, gpu_name: str | None = None) -> str:
        """The `sku` to look prices up by; `gpu_name` is the accelerator's name where the worker runs on one."""
        if self.sku != "auto":
            return self.sku
        # By its own threads, so that several workers on one machine do not each bill the whole of it.
        return gpu_sku(gpu_name) if gpu_name else f"cpu-{self.worker_threads}core"


def load_settings(config: Path | None = None, **flags: Any) -> Settings:
    """Settings from `config` (YAML), the environment and `flags` (None = not given), later ones winning.

    Raises SettingsError with every problem at once.
    """
    from_file, lines = read_config(config) if config else ({}, {})
    from_env = EnvSettingsSource(Settings, env_ignore_empty=True)()
    from_flags = {name: value for name, value in flags.items() if value is not None}

    def source(name: str) -> str:
        if name in from_flags:
            return f"--{name.replace('_', '-')}"
        if name in from_env:
            return f"{ENV_PREFIX}{name.upper()}"
        return f"{config}:{lines.get(name, 1)}: {name}" if name in from_file else name

    values = {**from_file, **from_env, **from_flags}
    problems = [f"{source(name)}: unknown setting{_suggestion(name)}" for name in values if name not in FIELDS]
    try:
        settings = Settings(**{name: value for name, value in values.items() if name in FIELDS})
    except ValidationError as error:
        for problem in error.errors():
            message = problem["msg"].removeprefix("Value error, ")
            field = str(problem["loc"][0]) if problem["loc"] else ""
            # A database URL may carry a password, and a password is one: neither is repeated.
            given = "" if field in ("database_url", "dashboard_password") else f" (not {problem['input']!r})"
            problems.append(f"{source(field)}: {message[0].lower()}{message[1:]}{given}" if field else message)
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The keys of a YAML settings file, and the line of each. Raises SettingsError when it cannot be read as such."""
    try:
        text = path.read_text(encoding="utf-8")
        node, values = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingsError(f"--config {path}: cannot be read: {reason}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SettingsError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if node is None:
        return {}, {}
    if not isinstance(node, yaml.MappingNode) or not isinstance(values, Mapping):
        raise SettingsError(f"{path}:1: must be a mapping of settings, such as `port: 8000`")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    return {str(key): value for key, value in values.items() if value is not None}, lines


def physical_cores(cpus: frozenset[int] | None = None, topology: Path = PHYSICAL_CORES) -> int:
    """Physical cores among `cpus` (default: those this process may run on), counting hyperthreads once.

    `topology`: the kernel's folder of CPUs; where it is missing every CPU counts as a core.
    """
    if cpus is None:
        allowed = getattr(os, "sched_getaffinity", None)
        cpus = frozenset(allowed(0)) if allowed else frozenset(range(os.cpu_count() or 1))
    cores = set()
    for cpu in cpus:
        try:
            cores.add((topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(len(cores), 1)


def gpu_sku(name: str) -> str:
    """A price sheet's key for a GPU's own name: "NVIDIA H100 80GB HBM3" is nvidia-h100.

    The A100 alone was sold at two prices by its memory: nvidia-a100-40gb, nvidia-a100-80gb.
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    model = next((word for word in words if re.fullmatch(r"(a|b|h|l|t|v|gb|gh)\d+[a-z]?", word)), None)
    if model is None or words[0] not in ("nvidia", "tesla"):
        return "-".join(words)
    memory = [word for word in words if model == "a100" and re.fullmatch(r"\d+gb", word)]
    return "-".join(["nvidia", model, *memory])


def reachable_host(host: str) -> str:
    """The address to connect to for a server bound to `host` (an any-address is reached through loopback)."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def is_loopback_host(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, FIELDS, n=1)
    return f", did you mean {close[0]}?" if close else f"; known ones: {', '.join(FIELDS)}"


FIELDS: tuple[str, ...] = tuple(Settings.model_fields)
