"""The layers of the settings: files, variables and flags."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpusched.common.errors import EXIT_USAGE, GpuschedError
from gpusched.config import layers as config
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS, Settings


def load(
    here: Path,
    *,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    system: str = "",
    user: str = "",
    project: str | bytes = "",
) -> LoadedSettings:
    """The layers from texts, in a directory of their own."""
    cwd = here / "work"
    cwd.mkdir()
    files = {"system": (here / "etc.yaml", system), "user": (here / "home.yaml", user)}
    for path, text in files.values():
        if text:
            path.write_text(text, "utf-8")
    if project:
        path = cwd / "gpusched.yaml"
        path.write_bytes(project if isinstance(project, bytes) else project.encode())
        path.chmod(0o644)
    return config.load(
        flags,
        environ=env or {},
        cwd=str(cwd),
        system_file=str(files["system"][0]),
        user_file=str(files["user"][0]),
    )


def refusal(here: Path, **layers: object) -> GpuschedError:
    with pytest.raises(GpuschedError) as caught:
        load(here, **layers)  # type: ignore[arg-type]
    assert caught.value.exit_code == EXIT_USAGE
    return caught.value


# ---- the layers ------------------------------------------------------------------------------------


def test_without_any_layer_all_is_default(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert [f.state for f in loaded.files] == ["absent"] * 3


def test_the_last_layer_that_names_a_value_wins(tmp_path: Path) -> None:
    text = "\n".join
    loaded = load(
        tmp_path,
        system=text(["max_gpus: 1", "retries: 1", "cpu_jobs: 1", "grace: 1", "max_checks: 1"]),
        user=text(["max_gpus: 2", "retries: 2", "cpu_jobs: 2", "grace: 2"]),
        project=text(["max_gpus: 3", "retries: 3", "cpu-jobs: 3"]),
        env={"GPUSCHED_MAX_GPUS": "4", "GPUSCHED_RETRIES": "4"},
        flags={"max_gpus": "5", "grace": None},
    )
    s = loaded.settings
    assert (s.max_gpus, s.retries, s.cpu_jobs, s.grace, s.max_checks) == (5, 4, 3, 2.0, 1)
    assert loaded.origins["max_gpus"] == "flag --max-gpus"
    assert loaded.origins["retries"] == "env GPUSCHED_RETRIES"
    assert loaded.origins["cpu_jobs"] == f"file {tmp_path}/work/gpusched.yaml"
    assert loaded.origins["grace"] == f"file {tmp_path}/home.yaml"
    assert loaded.origins["max_checks"] == f"file {tmp_path}/etc.yaml"
    assert loaded.origins["shell"] == "default"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("gpu_list: [4, 5, 6, 7]", "gpu_list", "4,5,6,7"),
        ("gpu_list: 0,1,4-7", "gpu_list", "0,1,4-7"),
        ("gpu_list: 4", "gpu_list", "4"),
        ("time_limit: 1h30m", "time_limit", 5400.0),
        ("time_limit: '90'", "time_limit", 90.0),
        ("max_checks: 010", "max_checks", 10),
        ("strip_gpu_env: yes", "strip_gpu_env", True),
        ("strip_gpu_env: off", "strip_gpu_env", False),
        ("shell: no", "shell", "no"),
        ("free_when: IDLE", "free_when", "idle"),
        ("max_gpus: ~", "max_gpus", None),
        ("max_gpus:", "max_gpus", None),
        ("max_gpus: none", "max_gpus", None),
        ("# nothing\n", "max_gpus", None),
        ("setup: env.sh", "setup", "{work}/env.sh"),
        ("setup: /opt/env.sh", "setup", "/opt/env.sh"),
    ],
)
def test_a_file_means_what_a_flag_would(tmp_path: Path, text: str, name: str, value: object) -> None:
    got = getattr(load(tmp_path, project=text).settings, name)
    assert got == (value.format(work=tmp_path / "work") if isinstance(value, str) else value)


def test_a_later_layer_can_take_a_value_back(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        user="time_limit: 2h\nstrip_gpu_env: true\n",
        env={"GPUSCHED_TIME_LIMIT": "none"},
        flags={"strip_gpu_env": False},
    )
    assert loaded.settings.time_limit is None
    assert loaded.settings.strip_gpu_env is False
    assert loaded.origins["time_limit"] == "env GPUSCHED_TIME_LIMIT"


def test_a_path_starts_from_the_place_that_names_it(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        user="setup: env.sh\nclaims_dir: ~/claims\n",
        env={"GPUSCHED_LOG_DIR": "logs"},
        flags={"state_dir": "./state"},
    )
    s = loaded.settings
    assert s.setup == f"{tmp_path}/env.sh"
    assert s.log_dir == f"{tmp_path}/work/logs"
    assert s.state_dir == f"{tmp_path}/work/state"
    assert s.claims_dir == os.path.expanduser("~/claims")


def test_an_unknown_key_is_an_error_with_the_nearest_right_one(tmp_path: Path) -> None:
    e = refusal(tmp_path, project="max_checks: 3\nmax_gpu: 2\n")
    assert e.where == f"{tmp_path}/work/gpusched.yaml:2"
    assert "max_gpu" in e.what
    assert e.hint == "did you mean max_gpus?"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: b: c", 1, "not YAML"),
        ("max_gpus: 2\n\tretries: 1", 2, "not YAML"),
        ("max_gpus: 2\nmax-gpus: 3", 2, "twice"),
        ("max_gpus: [1, 2]", 1, "one value"),
        ("retries: {a: 1}", 1, "one value"),
        ("gpu_list: [[1], 2]", 1, "one value"),
        ("? [a]\n: 1", 1, "no setting"),
        ("- max_gpus", None, "must hold settings"),
        ("just words", None, "must hold settings"),
        (b"shell: \xff\xfe", None, "not UTF-8|not YAML"),
        ("shell: \0", None, "line 1 has a NUL byte"),
        ("shell: sh".encode("utf-16"), None, "UTF-16, not UTF-8"),
        ("&a [*a]", None, "must hold settings"),
        ("gpu_list: &a [*a]", 1, "one value"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_line(
    tmp_path: Path, text: str | bytes, line: int | None, what: str
) -> None:
    e = refusal(tmp_path, project=text)
    path = f"{tmp_path}/work/gpusched.yaml"
    assert e.where.startswith(path)
    if line is not None:
        assert e.where == f"{path}:{line}"
    assert any(part in e.what for part in what.split("|"))


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("max_checks", "0", "a whole number, at least 1"),
        ("max_checks", "2.5", "a whole number"),
        ("max_gpus", "0", "at least 1"),
        ("max_gpus", "9" * 5000, "a whole number"),
        ("gpu_mem_threshold", "0", "at least 1"),
        ("gpu_mem_threshold", "500MiB", "a whole number"),
        ("gpus_per_job", "-1", "at least 0"),
        ("poll_interval", "0", "more than 0"),
        ("poll_interval", "nan", "seconds"),
        ("time_limit", "1:30", "1h30m"),
        ("free_when", "never", "one of auto, memory, idle"),
        ("leftovers", "kill", "one of wait, stop"),
        ("strip_gpu_env", "maybe", "true or false"),
        ("gpu_list", "a", "a list such as"),
        ("shell", " ", "some text"),
    ],
)
def test_a_bad_value_names_where_it_stands_and_what_is_right(tmp_path: Path, name: str, text: str, right: str) -> None:
    setting = SETTINGS[name]
    cases: list[tuple[dict[str, object], str]] = [
        ({"flags": {name: text}}, "".join([setting.flag, *(f" ({alias})" for alias in setting.aliases)])),
        ({"env": {setting.env: text}}, setting.env),
        ({"user": f"\n{name}: '{text}'\n"}, "home.yaml:2"),
    ]
    for number, (layers, where) in enumerate(cases):
        here = tmp_path / str(number)
        here.mkdir()
        e = refusal(here, **layers)
        assert e.where.endswith(where)
        assert e.what.startswith(f"{name} is ") and right in e.what


def test_more_gpus_a_job_than_the_queue_may_hold_is_refused_with_both_origins(tmp_path: Path) -> None:
    e = refusal(tmp_path, env={"GPUSCHED_MAX_GPUS": "2"}, flags={"gpus_per_job": "3"})
    assert "env GPUSCHED_MAX_GPUS" in e.what and "flag --gpus)" in e.what


# ---- the environment -------------------------------------------------------------------------------


def test_an_unknown_variable_is_a_warning_with_the_nearest_right_one(tmp_path: Path) -> None:
    loaded = load(tmp_path, env={"GPUSCHED_MAX_GPU": "2", "GPUSCHED_XYZZY": "1", "OTHER": "1"})
    assert loaded.settings == Settings()
    assert loaded.warnings == (
        "the variable GPUSCHED_MAX_GPU is no setting and is ignored; did you mean GPUSCHED_MAX_GPUS?",
        "the variable GPUSCHED_XYZZY is no setting and is ignored",
    )


def test_the_variables_of_a_job_are_no_settings_and_an_empty_one_is_none(tmp_path: Path) -> None:
    env = dict.fromkeys(config.NOT_SETTINGS, "x") | {"GPUSCHED_MAX_GPUS": "", "GPUSCHED_SHELL": ""}
    loaded = load(tmp_path, env=env)
    assert (loaded.settings, loaded.warnings) == (Settings(), ())


# ---- whose file ------------------------------------------------------------------------------------


def test_a_project_file_that_everyone_can_write_is_skipped_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "gpusched.yaml").write_text("shell: /tmp/evil\n")
    (tmp_path / "gpusched.yaml").chmod(0o666)
    loaded = config.load(environ={}, cwd=str(tmp_path), system_file="", user_file="")
    assert loaded.settings.shell == "bash"
    assert loaded.files[-1].state.startswith("skipped: can be written by everyone")
    assert "gpusched.yaml are ignored" in loaded.warnings[0]


@pytest.mark.parametrize(
    ("uid", "mode", "trusted"),
    [(os.geteuid(), 0o644, True), (0, 0o644, True), (os.geteuid(), 0o664, True), (12345, 0o644, False)],
)
def test_a_project_file_counts_if_it_is_mine_or_roots(uid: int, mode: int, trusted: bool) -> None:
    status = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, uid, 0, 0, 0, 0, 0))
    assert bool(config._why_not_trusted(status)) != trusted


def test_a_file_that_cannot_be_read_is_an_error_but_for_the_systems(tmp_path: Path) -> None:
    (tmp_path / "gpusched.yaml").mkdir()
    with pytest.raises(GpuschedError, match="cannot read this file"):
        config.load(environ={}, cwd=str(tmp_path), system_file="", user_file="")
    (tmp_path / "gpusched.yaml").rmdir()
    loaded = config.load(environ={}, cwd=str(tmp_path), system_file=str(tmp_path), user_file="")
    assert "cannot be read" in loaded.files[0].state
    assert len(loaded.warnings) == 1


def test_without_a_home_there_is_no_user_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user who is in no passwd file
    assert config.user_config_file() == ""


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(GpuschedError, match="the working directory is gone"):
        config.load(environ={}, system_file="", user_file="")
