"""The layers that fill the settings: files, environment and flags. The last layer that names a value wins.

Their order: default, system file, user file, project file, `GPUSCHED_*` variable, flag. Every value keeps its
origin, and every refusal names it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from gpusched.common.errors import EXIT_USAGE, GpuschedError
from gpusched.common.quantities import nearest
from gpusched.config.settings import ENV_PREFIX, SETTINGS, Setting, Settings

if TYPE_CHECKING:
    import yaml

SYSTEM_FILE = "/etc/gpusched/config.yaml"
PROJECT_FILE = "gpusched.yaml"

# Variables that gpusched gives to jobs, or that its tests read: no settings, and no warning for them.
NOT_SETTINGS = frozenset(
    ENV_PREFIX + name
    for name in (
        "JOB_ID",
        "ATTEMPT",
        "QUEUE",
        "ATTEMPT_DIR",
        "PROGRESS",
        "SIMULATION",
        "DEVICES",
        "BLESS",
    )
)

_NONE_WORDS = frozenset({"none", "null", "~"})


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One settings file of a layer: its path, and if it was read."""

    layer: str  # system | user | project
    path: str
    state: str  # read | absent | skipped: why


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, each with its origin. `warnings` are for the command line to print once."""

    settings: Settings
    origins: Mapping[str, str]  # name -> "default" | "file PATH" | "env GPUSCHED_X" | "flag --x"
    files: tuple[SettingsFile, ...] = ()
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """Return the settings with their origins, and the files, for programs."""
        values = {name: {"value": getattr(self.settings, name), "origin": self.origins[name]} for name in SETTINGS}
        files = [{"layer": f.layer, "path": f.path, "state": f.state} for f in self.files]
        return {"settings": values, "files": files, "warnings": list(self.warnings)}


@dataclass(frozen=True, slots=True)
class LayerValue:
    """One value of a layer, not yet parsed."""

    name: str
    text: str
    origin: str
    where: str  # for the error
    base: str  # what a relative path starts from


def load(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    system_file: str = SYSTEM_FILE,
    user_file: str | None = None,
) -> LoadedSettings:
    """Return the settings of all layers. `flags` maps names to text or bool; None stands for no value.

    The values of every layer are checked, even those that a later layer replaces. Raises GpuschedError.
    """
    environ = os.environ if environ is None else environ
    cwd = working_directory() if cwd is None else cwd
    warnings: list[str] = []
    files: list[SettingsFile] = []
    layered: list[LayerValue] = []
    candidates = [
        ("system", system_file),
        ("user", user_config_file() if user_file is None else user_file),
        ("project", os.path.join(cwd, PROJECT_FILE)),
    ]
    for layer, path in candidates:
        if path:
            layered += _from_file(layer, path, files, warnings)
    layered += _from_environ(environ, cwd, warnings)
    layered += _from_flags(flags or {}, cwd)

    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    for item in layered:
        values[item.name] = _value(item)
        origins[item.name] = item.origin
    settings = replace(Settings(), **cast("dict[str, Any]", values))
    _check_together(settings, origins)
    return LoadedSettings(settings, origins, tuple(files), tuple(warnings))


def user_config_file() -> str:
    """Return the path of the user's own file; empty where there is no home directory."""
    import platformdirs

    try:
        path = os.path.join(platformdirs.user_config_dir("gpusched"), "config.yaml")
    except RuntimeError:  # a user who is in no passwd file, as in a container
        return ""
    return path if os.path.isabs(path) else ""


def working_directory() -> str:
    """Return the working directory. Raises GpuschedError if it no longer exists."""
    try:
        return os.getcwd()
    except OSError as e:
        raise GpuschedError(
            "the working directory is gone", hint="change to a directory that exists", exit_code=EXIT_USAGE
        ) from e


def _value(item: LayerValue) -> object:
    setting = SETTINGS[item.name]
    if item.text.strip().lower() in _NONE_WORDS and setting.default is None:
        return None
    try:
        value = setting.parse(item.text if setting.is_path else item.text.strip())
    except ValueError as e:
        raise GpuschedError(
            f"{item.name} is {item.text!r}, but must be {e}", where=item.where, hint=setting.hint
        ) from None
    if setting.is_path:
        path = os.path.join(item.base, os.path.expanduser(str(value)))
        return path if ".." in path.split("/") else os.path.normpath(path)  # `..` after a symbolic link
    return value


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    if settings.max_gpus is not None and settings.gpus_per_job > settings.max_gpus:
        raise GpuschedError(
            f"a job needs {settings.gpus_per_job} GPUs (gpus_per_job, {origins['gpus_per_job']}), but this "
            f"queue may hold only {settings.max_gpus} at once (max_gpus, {origins['max_gpus']})",
            hint="raise --max-gpus or lower --gpus-per-job",
        )


def _from_flags(flags: Mapping[str, object], cwd: str) -> Iterator[LayerValue]:
    for name, value in flags.items():
        if value is not None:
            flag = SETTINGS[name].flag
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            yield LayerValue(name, text, f"flag {flag}", flag, cwd)


def _from_environ(environ: Mapping[str, str], cwd: str, warnings: list[str]) -> Iterator[LayerValue]:
    """Yield the values of the variables. An empty variable counts as unset."""
    known = {setting.env: setting for setting in SETTINGS.values()}
    for setting in SETTINGS.values():
        text = environ.get(setting.also_env, "") if setting.also_env else ""
        if text and not environ.get(setting.env):
            try:  # the variable is shared with other programs: what we cannot read is not an error
                setting.parse(text)
            except ValueError as e:
                warnings.append(f"{setting.also_env} is {text!r} and is ignored: it should be {e}")
            else:
                yield LayerValue(setting.name, text, f"env {setting.also_env}", setting.also_env, cwd)
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            meant = nearest(variable.removeprefix(ENV_PREFIX).lower(), SETTINGS)
            advice = f"; did you mean {SETTINGS[meant].env}?" if meant else ""
            warnings.append(f"the variable {variable} is no setting and is ignored{advice}")
        elif environ[variable]:
            setting = known[variable]
            yield LayerValue(setting.name, environ[variable], f"env {variable}", variable, cwd)


def _from_file(layer: str, path: str, files: list[SettingsFile], warnings: list[str]) -> list[LayerValue]:
    try:
        with open(path, "rb") as f:
            doubt = _why_not_trusted(os.fstat(f.fileno())) if layer == "project" else ""
            data = b"" if doubt else f.read()
    except (FileNotFoundError, NotADirectoryError):
        files.append(SettingsFile(layer, path, "absent"))
        return []
    except OSError as e:
        if layer != "system":
            raise GpuschedError(f"cannot read this file: {e.strerror}", where=path) from e
        doubt, data = f"cannot be read: {e.strerror}", b""
    if doubt:
        files.append(SettingsFile(layer, path, f"skipped: {doubt}"))
        warnings.append(f"the settings in {path} are ignored: the file {doubt}")
        return []
    files.append(SettingsFile(layer, path, "read"))
    return list(_parse_file(path, data))


def _why_not_trusted(status: os.stat_result) -> str:
    """Return the reason to ignore a project file; empty if it is this user's or root's.

    A project file can name programs to run.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everyone (chmod o-w lets it count)"
    return ""


def _parse_file(path: str, data: bytes) -> Iterator[LayerValue]:
    """Yield the pairs of a YAML mapping as text: `010`, `yes` and `1:30` mean the same as in a flag."""
    import yaml

    loader: type[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        root = yaml.compose(data, Loader=loader)
    except UnicodeDecodeError:
        raise GpuschedError("this file is not UTF-8", where=path) from None
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else path
        problem = getattr(e, "problem", None) or getattr(e, "reason", None) or "it cannot be read"
        raise GpuschedError(f"this file is not YAML: {problem}", where=where) from None
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return
    if not isinstance(root, yaml.MappingNode):
        raise GpuschedError(
            "this file must hold settings, one 'name: value' a line",
            where=path,
            hint="for example: max_gpus: 2",
        )
    seen: set[str] = set()
    for key_node, value_node in root.value:
        where = f"{path}:{key_node.start_mark.line + 1}"
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "(no text)"
        name = key.replace("-", "_")
        if name not in SETTINGS:
            meant = nearest(name, SETTINGS)
            raise GpuschedError(
                f"there is no setting {key!r}",
                where=where,
                hint=f"did you mean {meant}?" if meant else "'gpusched config' lists the settings",
            )
        if name in seen:
            raise GpuschedError(f"{name} is set in this file twice", where=where)
        seen.add(name)
        text = _node_text(value_node, SETTINGS[name], where)
        if text:
            yield LayerValue(name, text, f"file {path}", where, os.path.dirname(path))


def _node_text(node: yaml.Node, setting: Setting, where: str) -> str:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if setting.is_list and isinstance(node, yaml.SequenceNode):
        return ",".join(_node_text(item, replace(setting, is_list=False), where) for item in node.value)
    raise GpuschedError(f"{setting.name} must be one value, not a list or a mapping", where=where)
