"""The layers that fill the settings: files, environment and flags. The last layer that names a value wins.

Their order: default, system file, user file, project file, `GPUSCHED_*` variable, flag. Every value keeps its
origin, and every refusal names it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpusched.common.errors import GpuschedError
from gpusched.common.files import user_dir
from gpusched.common.quantities import nearest
from gpusched.common.text import MASK
from gpusched.config.settings import ENV_PREFIX, SETTINGS, Settings
from gpusched.config.yaml_text import InvalidYaml, compose, is_scalar, kind, plain_pairs

SYSTEM_FILE = "/etc/gpusched/config.yaml"
PROJECT_FILE = "gpusched.yaml"
LEAST_COUNTS = ("max_gpus_per_user",)  # no layer raises what an earlier one says

# Variables that gpusched gives to jobs and notices, or that its tests read: no settings, and no warning for them.
_OTHER_NAMES = "JOB_ID ATTEMPT QUEUE ATTEMPT_DIR PROGRESS SIMULATION DEVICES EVENT MESSAGE BLESS LOCK_FD"
NOT_SETTINGS = frozenset(ENV_PREFIX + name for name in _OTHER_NAMES.split())

# By verb: values of settings that no layer sets.
VERB_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "pool": {"gpu_strategy": "round-robin", "max_quick_fails": 0, "mem": "auto"},
    "shard": {"split_streams": True, "on_dep_fail": "hold"},
}
_NONE_WORDS = ("none", "null", "~")


class SettingsFile(NamedTuple):
    """One settings file of a layer: its path, and if it was read."""

    layer: str  # system | user | project
    path: str
    state: str  # read | absent | skipped: why


class LoadedSettings(NamedTuple):
    """The settings, each with its origin. `warnings` are for the command line to print once."""

    settings: Settings
    origins: Mapping[str, str]  # name -> "default" | "file PATH" | "env GPUSCHED_X" | "flag --x"
    files: tuple[SettingsFile, ...] = ()
    warnings: tuple[str, ...] = ()

    def stated(self) -> dict[str, object]:
        """Return the values that flags have given, by name."""
        return {name: getattr(self.settings, name) for name, at in self.origins.items() if at.startswith("flag")}

    def document(self) -> dict[str, object]:
        """Return the settings with their origins, and the files, for programs."""
        shown = {name: setting.masked(getattr(self.settings, name)) for name, setting in SETTINGS.items()}
        values = {name: {"value": value, "origin": self.origins[name]} for name, value in shown.items()}
        files = [file._asdict() for file in self.files]
        return {"settings": values, "files": files, "warnings": list(self.warnings)}


def with_defaults(loaded: LoadedSettings, verb: str) -> LoadedSettings:
    """Return the settings with the defaults of this verb."""
    own = {name: value for name, value in VERB_DEFAULTS.get(verb, {}).items() if loaded.origins[name] == "default"}
    return loaded._replace(settings=replace(loaded.settings, **own))


class LayerValue(NamedTuple):
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
    user_file = user_config_file() if user_file is None else user_file
    for layer, path in {"system": system_file, "user": user_file, "project": os.path.join(cwd, PROJECT_FILE)}.items():
        if path:
            layered += _from_file(layer, path, files, warnings)
    layered += _from_environ(environ, cwd, warnings)
    layered += _from_flags(flags or {}, cwd)

    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    for item in layered:
        value, before = _value(item), values.get(item.name)
        if item.name in LEAST_COUNTS and before is not None and (value is None or value >= before):
            continue
        values[item.name] = value
        origins[item.name] = item.origin
    settings = Settings(**values)
    _check_together(settings, origins)
    return LoadedSettings(settings, origins, tuple(files), tuple(warnings))


def user_config_file() -> str:
    """Return the path of the user's own file; empty where there is no home directory."""
    directory = user_dir("XDG_CONFIG_HOME", ".config")
    return os.path.join(directory, "config.yaml") if directory else ""


def working_directory() -> str:
    """Return the working directory. Raises GpuschedError if it no longer exists."""
    try:
        return os.getcwd()
    except OSError as e:
        raise GpuschedError("the working directory is gone", hint="change to a directory that exists") from e


def _value(item: LayerValue) -> Any:
    setting = SETTINGS[item.name]
    if item.text.strip().lower() in _NONE_WORDS and setting.default is None:
        return None
    try:
        value = setting.parse(item.text if setting.is_path else item.text.strip())
    except ValueError as e:
        what = f"{item.name} is {MASK if setting.is_secret else repr(item.text)}, but must be {e}"
        raise GpuschedError(what, where=item.where, hint=setting.hint) from None
    if setting.is_path:
        path = os.path.join(item.base, os.path.expanduser(str(value)))
        return path if ".." in path.split("/") else os.path.normpath(path)  # `..` after a symbolic link
    return value


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    for name, whose in {"max_gpus": "this queue", "max_gpus_per_user": "each user"}.items():
        most = getattr(settings, name)
        if most is not None and settings.gpus_per_job > most:
            raise GpuschedError(
                f"a job needs {settings.gpus_per_job} GPUs (gpus_per_job, {origins['gpus_per_job']}), but {whose} may "
                f"hold only {most} at once ({name}, {origins[name]})",
                hint=f"raise {SETTINGS[name].flag} or lower --gpus",
            )


def _unknown(name: str, where: str = "") -> GpuschedError:
    meant = nearest(name.replace("-", "_"), SETTINGS)
    hint = f"did you mean {meant}?" if meant else "'gpusched config' lists the settings"
    return GpuschedError(f"there is no setting {name!r}", where=where, hint=hint)


def _from_flags(flags: Mapping[str, object], cwd: str) -> Iterator[LayerValue]:
    for name, value in flags.items():
        if name not in SETTINGS:  # of a call in Python
            raise _unknown(name)
        if value is not None:
            flag, aliases = SETTINGS[name].flag, SETTINGS[name].aliases
            where = f"{flag} ({', '.join(aliases)})" if aliases else flag
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            yield LayerValue(name, text, f"flag {[flag, *aliases][-1]}", where, cwd)  # as --help shows it


def _from_environ(environ: Mapping[str, str], cwd: str, warnings: list[str]) -> Iterator[LayerValue]:
    """Yield the values of the variables. An empty variable counts as unset."""
    known = {setting.env: setting.name for setting in SETTINGS.values()}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            meant = nearest(variable.removeprefix(ENV_PREFIX).lower(), SETTINGS)
            advice = f"; did you mean {SETTINGS[meant].env}?" if meant else ""
            warnings.append(f"the variable {variable} is no setting and is ignored{advice}")
        elif environ[variable]:
            yield LayerValue(known[variable], environ[variable], f"env {variable}", variable, cwd)


def _from_file(layer: str, path: str, files: list[SettingsFile], warnings: list[str]) -> list[LayerValue]:
    doubt, data = "", b""
    try:
        with open(path, "rb") as f:
            doubt = _why_not_trusted(os.fstat(f.fileno())) if layer == "project" else ""
            data = b"" if doubt else f.read()
    except (FileNotFoundError, NotADirectoryError):
        files.append(SettingsFile(layer, path, "absent"))
        return []
    except OSError as e:
        if layer != "system":  # that one is for root to mend: it must not stop every user of the box
            raise GpuschedError(f"cannot read this file: {e.strerror}", where=path) from e
        doubt = f"cannot be read: {e.strerror}"
    if doubt:
        warnings.append(f"the settings in {path} are ignored: the file {doubt}")
    files.append(SettingsFile(layer, path, f"skipped: {doubt}" if doubt else "read"))
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
    seen: set[str] = set()
    for line, key, value in _pairs(path, data):
        where = f"{path}:{line}"
        name = key.replace("-", "_")
        if name not in SETTINGS:
            raise _unknown(key, where)
        if name in seen:
            raise GpuschedError(f"{name} is set in this file twice", where=where)
        seen.add(name)
        if value is None or (isinstance(value, list) and not SETTINGS[name].is_list):
            raise GpuschedError(f"{name} must be one value, not a list or a mapping", where=where)
        text = ",".join(value) if isinstance(value, list) else value
        if text:
            yield LayerValue(name, text, f"file {path}", where, os.path.dirname(path))


def _pairs(path: str, data: bytes) -> Iterator[tuple[int, str, str | list[str] | None]]:
    """Yield line, key and value of each pair: a text, a list of texts, or None for any other value."""
    plain = plain_pairs(data)
    if plain is not None:
        yield from plain
        return
    try:
        root = compose(data)
    except InvalidYaml as error:
        where = f"{path}:{error.line + 1}" if error.line >= 0 else path
        raise GpuschedError(str(error), where=where) from None
    if root is None or root.value == "":
        return
    if kind(root) != "map":
        hint = "for example: max_gpus: 2"
        raise GpuschedError("this file must hold settings, one 'name: value' a line", where=path, hint=hint)
    for key_node, node in root.value:
        nodes = node.value if kind(node) == "list" else [node]
        texts = [each.value for each in nodes] if all(map(is_scalar, nodes)) else None
        value = texts[0] if texts and is_scalar(node) else texts
        yield key_node.start_mark.line + 1, str(key_node.value), value
