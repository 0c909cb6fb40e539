import pickle
from pathlib import Path

import pytest

from controlplane.settings import Settings, SettingsError, gpu_sku, load_settings, physical_cores


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"KADENCE_{name.upper()}", raising=False)


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "kadence.yaml"
    path.write_text(text)
    return path


def error_of(config: Path | None = None, **flags: object) -> str:
    with pytest.raises(SettingsError) as raised:
        load_settings(config, **flags)
    return str(raised.value)


def test_without_anything_the_defaults_hold() -> None:
    settings = load_settings()
    assert (settings.port, settings.drafter, settings.replicas) == (8000, "auto", 1)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml_file(tmp_path, "port: 1001\nreplicas: 2\nthreads: 3\n")
    monkeypatch.setenv("KADENCE_PORT", "1002")
    monkeypatch.setenv("KADENCE_REPLICAS", "4")
    settings = load_settings(config, port=1003)
    assert (settings.port, settings.replicas, settings.threads) == (1003, 4, 3)


def test_a_flag_that_was_not_given_changes_nothing(tmp_path: Path) -> None:
    assert load_settings(yaml_file(tmp_path, "port: 1001\n"), port=None).port == 1001


def test_paths_are_absolute_because_workers_run_in_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(policy=Path("mine.yaml")).policy == tmp_path / "mine.yaml"


def test_the_database_lies_in_home_unless_it_is_said_where(tmp_path: Path) -> None:
    assert load_settings(home=tmp_path).database_url == f"sqlite:///{tmp_path}/kadence.db"


def test_a_database_url_that_is_given_is_kept(tmp_path: Path) -> None:
    url = "postgresql://db.example/kadence"
    assert load_settings(home=tmp_path, database_url=url).database_url == url


def test_an_unknown_key_is_named_with_its_line_and_the_key_that_was_meant(tmp_path: Path) -> None:
    config = yaml_file(tmp_path, "replicas: 1\nprot: 9000\n")
    assert error_of(config) == f"{config}:2: prot: unknown setting, did you mean port?"


def test_all_problems_come_at_once_each_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = yaml_file(tmp_path, "max_context: lots\n")
    monkeypatch.setenv("KADENCE_REPLICAS", "0")
    lines = error_of(config, device="gpu").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["--device", "KADENCE_REPLICAS", f"{config}:1"]


@pytest.mark.parametrize(
    "drafter",
    [
        "draft_model",
        "draft_model:",
        "ngram:3",
        "eagle: ",
        "ngram+ngram",
        "ngram+none",
        "ngram+auto",
        "auto:3",
        "ngram+",
    ],
)
def test_an_unknown_drafter_is_refused_with_the_choices(drafter: str) -> None:
    assert "auto, ngram, none, draft_model:<folder or hub id>, eagle, medusa or draft" in error_of(drafter=drafter)


@pytest.mark.parametrize(
    "drafter",
    [
        "auto",
        "ngram",
        "none",
        "eagle",
        "ngram+draft",
        "draft_model:/tmp/small",
        "ngram+draft_model:org/small",
        "eagle:/tmp/eagle",
        "ngram+medusa:/tmp/m",
    ],
)
def test_each_kind_of_drafter_is_accepted(drafter: str) -> None:
    assert load_settings(drafter=drafter).drafter == drafter


def test_a_bad_database_url_is_refused_without_repeating_its_password() -> None:
    error = error_of(database_url="mysql://root:hunter2@db/kadence")
    assert error.startswith("--database-url: must be empty or start with sqlite://")
    assert "hunter2" not in error


def test_one_port_for_two_servers_is_refused() -> None:
    assert error_of(dashboard_port=8000) == "port and dashboard_port are both 8000; give each its own"


def test_a_plan_must_outlive_a_tick() -> None:
    assert "every plan expires unused" in error_of(tick_s=10.0, plan_ttl_s=10.0)


@pytest.mark.parametrize("text", ["- port\n", "port\n", "a: [\n", "port: 1\n\tx: 2\n"])
def test_a_file_that_is_no_mapping_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    config = yaml_file(tmp_path, text)
    assert error_of(config).startswith(f"{config}:")


def test_a_file_that_is_not_there_is_refused() -> None:
    assert error_of(Path("/nowhere.yaml")) == "--config /nowhere.yaml: cannot be read: No such file or directory"


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_settings(yaml_file(tmp_path, "")) == load_settings()


def test_settings_travel_to_other_processes() -> None:
    settings = load_settings(port=1234)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1


def test_hyperthreads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores(frozenset(range(4)), tmp_path) == 2


def test_without_a_topology_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert physical_cores(frozenset({0, 1, 5}), tmp_path) == 3


def test_an_any_address_is_reached_through_loopback() -> None:
    assert load_settings(host="0.0.0.0").url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("name", "sku"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-80gb"),
        ("NVIDIA L40S", "nvidia-l40s"),
        ("Tesla T4", "nvidia-t4"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
    ],
)
def test_a_gpu_is_priced_under_its_short_name(name: str, sku: str) -> None:
    assert gpu_sku(name) == sku


def test_a_sku_that_is_set_wins_over_the_gpu() -> None:
    assert load_settings(sku="ours").price_key("NVIDIA H100 PCIe") == "ours"


@pytest.mark.parametrize(
    ("require_keys", "host", "demanded"),
    [
        ("auto", "127.0.0.1", None),
        ("auto", "::1", None),
        ("auto", "localhost", None),
        ("auto", "0.0.0.0", True),
        ("auto", "::", True),
        ("auto", "10.0.0.9", True),
        ("auto", "kadence.example", True),
        ("always", "127.0.0.1", True),
        ("never", "0.0.0.0", False),
    ],
)
def test_keys_are_demanded_where_others_than_this_machine_can_come(
    require_keys: str, host: str, demanded: bool | None
) -> None:
    assert load_settings(require_keys=require_keys, host=host).keys_demanded is demanded
