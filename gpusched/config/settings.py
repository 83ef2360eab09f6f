"""The settings: one table, and the layers that fill it. Knows nothing of the command line's library.

A value comes from the last layer that names it: default, system file, user file, project file,
`GPUSCHED_*` variable, flag. Every value keeps its origin, and every "no" names it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpusched.common.errors import EXIT_USAGE, GpuschedError
from gpusched.common.quantities import DURATION_IS, format_duration, nearest, parse_duration

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")

SYSTEM_FILE = "/etc/gpusched/config.yaml"
PROJECT_FILE = "gpusched.yaml"
ENV_PREFIX = "GPUSCHED_"

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

DEFAULT_MAX_GPUS = 4


# ---- parsers: text -> value; ValueError says what would be right -------------------------------------

_NONE_WORDS = frozenset({"none", "null", "~"})
# What may stand in a list of GPUs: an index, a range, or a UUID or its beginning.
GPU_TOKEN = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?|(?:GPU|MIG)-[A-Za-z0-9_/-]+", re.IGNORECASE)


def parse_gpu_list(text: str) -> str:
    """Commas and blanks between indices, ranges and UUIDs -> the same with commas only."""
    tokens = [token for token in re.split(r"[,\s]+", text) if token]
    right = "a list such as 0,1,4-7 of indices, ranges and UUIDs (GPU-…, MIG-…)"
    if not tokens:
        raise ValueError(right)
    for token in tokens:
        if not GPU_TOKEN.fullmatch(token):
            raise ValueError(f"{right}; {token!r} is none of them")
        first, dash, last = token.partition("-")
        if dash and first.isdigit() and int(first) > int(last):
            raise ValueError(f"{right}; the range {token} runs backwards")
    return ",".join(tokens)


def _whole(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or int(text) < low:
            raise ValueError(f"a whole number, at least {low}")
        return int(text)

    return parse


def _duration(*, zero: bool) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if seconds == 0 and not zero:
            raise ValueError(f"more than 0: {DURATION_IS}")
        return seconds

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for word in words:
            if text.lower() == word.lower():
                return word
        raise ValueError("one of " + ", ".join(words))

    return parse


def _tag_limits(text: str) -> str:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not re.fullmatch(r"[^\s=,]+=[1-9]\d*", word):
            raise ValueError(f"TAG=N, comma-separated, N at least 1; {word!r} is not")
    return ",".join(words)


def _switch(text: str) -> bool:
    if text.lower() in {"true", "yes", "on", "1"}:
        return True
    if text.lower() in {"false", "no", "off", "0"}:
        return False
    raise ValueError("true or false")


def _text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("some text")
    return text


# ---- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: what the files, the variables, the flags and the docs need to know."""

    name: str
    parse: Callable[[str], object]
    default: object
    help: str  # imperative, one sentence, no final full stop
    metavar: str = ""  # empty for a switch
    choices: tuple[str, ...] = ()
    is_path: bool = False
    is_list: bool = False  # a file may give a YAML list
    shown_default: str = ""
    aliases: tuple[str, ...] = ()  # further flags
    also_env: str = ""  # a variable of common use that is read where ours is not set
    hint: str = ""  # added to the error about a bad value

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    def default_text(self) -> str:
        """The default as the help and the docs show it."""
        return self.shown_default or show(self, self.default)


def _row(default: T, parse: Callable[[str], T], help: str, **more: Any) -> T:
    """A field of `Settings` that carries its row. Typed as its default, as `dataclasses.field` is."""
    return field(default=default, metadata={"row": {"parse": parse, "help": help, **more}})


def _choice(default: str, words: tuple[str, ...], help: str, **more: Any) -> str:
    return _row(default, _one_of(*words), help, choices=words, metavar="|".join(words), **more)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, typed; durations are seconds. The one table: the rest of the tool is made from it."""

    max_gpus: int | None = _row(
        None,
        _whole(1),
        "Hold at most N GPUs at once with this queue",
        metavar="N",
        shown_default=f"{DEFAULT_MAX_GPUS}, or --gpus-per-job if larger",
    )
    gpu_list: str | None = _row(
        None,
        parse_gpu_list,
        "Use only these GPUs, in order of preference: 0,1,4-7, UUIDs, or several words (4 5 6 7)",
        metavar="LIST",
        is_list=True,
        shown_default="all visible",
        aliases=("--gpus",),
    )
    gpu_mem_threshold: int = _row(
        500,
        _whole(1),
        "Count a GPU as free while others use less than this much of its memory",
        metavar="MIB",
        hint="a GPU is free while foreign memory is strictly below this; with 0 none ever would be",
    )
    max_checks: int = _row(
        10,
        _whole(1),
        "Take a GPU once it has been free for N checks in a row",
        metavar="N",
        hint="1 takes a GPU that is free at the first look",
    )
    poll_interval: float = _row(
        2.0, _duration(zero=False), "Look at the GPUs every S seconds", metavar="S", shown_default="2"
    )
    free_when: str = _choice(
        "memory",
        ("memory", "idle"),
        "Call a GPU free by its memory alone, or (idle) only if no foreign compute process is on it either",
    )
    gpus_per_job: int = _row(
        1,
        _whole(0),
        "Give each job N GPUs; 0 makes CPU jobs that see no GPU and wait for none",
        metavar="N",
    )
    cpu_jobs: int = _row(2, _whole(1), "Run at most N CPU jobs at once", metavar="N")
    time_limit: float | None = _row(
        None,
        _duration(zero=False),
        "Stop an attempt that runs longer than this: 90, 90m, 2h, 1h30m",
        metavar="TIME",
        shown_default="none",
    )
    retries: int = _row(0, _whole(0), "Try a failed job again, up to N times", metavar="N")
    grace: float = _row(
        10.0,
        _duration(zero=True),
        "Wait this long between TERM and KILL when a job is stopped",
        metavar="TIME",
        shown_default="10",
    )
    log_dir: str | None = _row(
        None,
        _text,
        "Keep the queue, its logs and its metrics in this directory",
        metavar="DIR",
        is_path=True,
        shown_default="gpusched-runs/<stem of FILE>",
    )
    visible_devices: str = _choice(
        "auto",
        ("auto", "index", "uuid"),
        "Write indices or UUIDs into CUDA_VISIBLE_DEVICES; auto writes indices where these are safe",
    )
    setup: str | None = _row(
        None,
        _text,
        "Source this file in the shell before each command",
        metavar="FILE",
        is_path=True,
        shown_default="none",
    )
    shell: str = _row("bash", _text, "Run the commands with this shell", metavar="SHELL")
    leftovers: str = _choice(
        "wait",
        ("wait", "stop"),
        "Wait for processes that a command leaves behind, or stop them, before its GPU is given on",
    )
    split_streams: bool = _row(False, _switch, "Write stdout and stderr of a job into two files")
    allow_unreadable_memory: bool = _row(
        False,
        _switch,
        "Use GPUs whose memory cannot be read too, judged by their processes and utilisation",
    )
    strip_gpu_env: bool = _row(
        False,
        _switch,
        "Take CUDA_VISIBLE_DEVICES=… out of the commands, so that they use the GPU they are given",
    )
    simulate: str | None = _row(
        None,
        _text,
        "Simulate GPUs, for a trial on any machine: 4, or 4xA100",
        metavar="N[xMODEL]",
        shown_default="none",
    )
    claims_dir: str | None = _row(
        None,
        _text,
        "Keep the locks that all users of this box share in this directory",
        metavar="DIR",
        is_path=True,
        shown_default="first of /run/lock, /dev/shm, /tmp that fits",
    )
    state_dir: str | None = _row(
        None,
        _text,
        "Keep queue.db and locks here for queues on a network file system (a local disk, yours alone)",
        metavar="DIR",
        is_path=True,
        shown_default="your own state directory",
    )
    max_jobs_per_gpu: int = _row(
        4, _whole(1), "Let at most N jobs that state their memory (mem=) share one GPU", metavar="N"
    )
    gpu_strategy: str = _choice(
        "fill-first",
        ("fill-first", "round-robin", "memory-aware"),
        "Choose GPUs for jobs that state their memory: fill those in use, spread, or take the emptiest",
    )
    max_bypass: float = _row(
        600.0,
        _duration(zero=True),
        "Let smaller jobs pass a larger one that waits for this long, then keep GPUs for it",
        metavar="TIME",
        shown_default="10m",
    )
    tag_max_gpus: str | None = _row(
        None,
        _tag_limits,
        "Hold at most so many GPUs with the jobs of a tag: ablation=2,prep=1",
        metavar="TAG=N,...",
        shown_default="none",
    )
    max_fails: int | None = _row(
        None, _whole(1), "Start nothing more once N jobs have failed", metavar="N", shown_default="none"
    )
    on_dep_fail: str = _choice(
        "cancel",
        ("cancel", "hold"),
        "Cancel or hold a job when one that it depends on has failed",
    )
    idle_timeout: float | None = _row(
        None,
        _duration(zero=False),
        "Report a job whose GPUs show no process of its own for this long",
        metavar="TIME",
        shown_default="none",
    )
    idle_action: str = _choice("report", ("report", "stop"), "Report an idle job only, or stop it")
    snapshot: bool = _row(
        False,
        _switch,
        "Run the jobs from a copy of the git work tree as it is now",
    )
    settle_timeout: float = _row(
        30.0,
        _duration(zero=True),
        "Wait this long for a GPU's memory to come back after a job, then set the GPU aside",
        metavar="TIME",
        shown_default="30",
    )
    log_level: str = _choice(
        "INFO",
        ("DEBUG", "INFO", "WARNING", "ERROR"),
        "Write this much to the dispatcher's log",
        also_env="LOG_LEVEL",
    )

    @property
    def gpus_at_once(self) -> int:
        """`max_gpus` with its default worked out."""
        return max(DEFAULT_MAX_GPUS, self.gpus_per_job) if self.max_gpus is None else self.max_gpus

    def jobs_at_once(self, gpus: int) -> int:
        """How many jobs that have their GPUs alone run at once on so many allowed GPUs; at least 1."""
        return max(1, min(gpus, self.gpus_at_once) // self.gpus_per_job)

    @property
    def tag_limits(self) -> dict[str, int]:
        """`tag_max_gpus` by tag."""
        words = (word.split("=") for word in (self.tag_max_gpus or "").split(",") if word)
        return {tag: int(n) for tag, n in words}

    def to_json(self) -> str:
        """All values, for the dispatcher that works on the same queue."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that to_json() wrote; names that another version knew and this one does not are dropped."""
        known = {name: value for name, value in json.loads(text).items() if name in SETTINGS}
        return cls(**known)


SETTINGS: Mapping[str, Setting] = {
    f.name: Setting(name=f.name, default=f.default, **f.metadata["row"]) for f in fields(Settings)
}


def show(setting: Setting, value: object) -> str:
    """A value as a person would write it into a file."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if value < 60 else format_duration(value)
    return str(value)


# ---- the layers ------------------------------------------------------------------------------------


def changed(before: Settings, after: Settings) -> list[str]:
    """What differs, as "max_gpus 1 -> 4"."""
    pairs = ((setting, getattr(before, name), getattr(after, name)) for name, setting in SETTINGS.items())
    return [f"{setting.name} {show(setting, a)} -> {show(setting, b)}" for setting, a, b in pairs if a != b]


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file that was looked for, and what came of it."""

    layer: str  # system | user | project
    path: str
    state: str  # read | absent | skipped: why


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings with where each came from. `warnings` are for the command line to print once."""

    settings: Settings
    origins: Mapping[str, str]  # name -> "default" | "file PATH" | "env GPUSCHED_X" | "flag --x"
    files: tuple[SettingsFile, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as some layer gives it, not yet parsed."""

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
    """All layers, the last one wins. `flags` maps names to text or bool; None means not given.

    Every layer's values are checked, those that a later layer replaces too.
    """
    environ = os.environ if environ is None else environ
    cwd = working_directory() if cwd is None else cwd
    warnings: list[str] = []
    files: list[SettingsFile] = []
    given: list[_Given] = []
    places = [
        ("system", system_file),
        ("user", user_config_file() if user_file is None else user_file),
        ("project", os.path.join(cwd, PROJECT_FILE)),
    ]
    for layer, path in places:
        if path:
            given += _from_file(layer, path, files, warnings)
    given += _from_environ(environ, cwd, warnings)
    given += _from_flags(flags or {}, cwd)

    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    for item in given:
        values[item.name] = _value(item)
        origins[item.name] = item.origin
    settings = replace(Settings(), **cast("dict[str, Any]", values))
    _check_together(settings, origins)
    return LoadedSettings(settings, origins, tuple(files), tuple(warnings))


def user_config_file() -> str:
    """The user's own file; empty where there is no home directory to look in."""
    import platformdirs

    try:
        path = os.path.join(platformdirs.user_config_dir("gpusched"), "config.yaml")
    except RuntimeError:  # a user who is in no passwd file, as in a container
        return ""
    return path if os.path.isabs(path) else ""


def working_directory() -> str:
    """Raises GpuschedError where it is gone."""
    try:
        return os.getcwd()
    except OSError as e:
        raise GpuschedError(
            "the working directory is gone", hint="change to a directory that exists", exit_code=EXIT_USAGE
        ) from e


def _value(item: _Given) -> object:
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


def _from_flags(flags: Mapping[str, object], cwd: str) -> Iterator[_Given]:
    for name, value in flags.items():
        if value is not None:
            flag = SETTINGS[name].flag
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            yield _Given(name, text, f"flag {flag}", flag, cwd)


def _from_environ(environ: Mapping[str, str], cwd: str, warnings: list[str]) -> Iterator[_Given]:
    """An empty variable is as good as none."""
    known = {setting.env: setting for setting in SETTINGS.values()}
    for setting in SETTINGS.values():
        text = environ.get(setting.also_env, "") if setting.also_env else ""
        if text and not environ.get(setting.env):
            try:  # the variable is shared with other programs: what we cannot read is not an error
                setting.parse(text)
            except ValueError as e:
                warnings.append(f"{setting.also_env} is {text!r} and is ignored: it should be {e}")
            else:
                yield _Given(setting.name, text, f"env {setting.also_env}", setting.also_env, cwd)
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            meant = nearest(variable.removeprefix(ENV_PREFIX).lower(), SETTINGS)
            advice = f"; did you mean {SETTINGS[meant].env}?" if meant else ""
            warnings.append(f"the variable {variable} is no setting and is ignored{advice}")
        elif environ[variable]:
            setting = known[variable]
            yield _Given(setting.name, environ[variable], f"env {variable}", variable, cwd)


def _from_file(layer: str, path: str, files: list[SettingsFile], warnings: list[str]) -> list[_Given]:
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
    """A project file can name programs to run, so it must be this user's or root's."""
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everyone (chmod o-w lets it count)"
    return ""


def _parse_file(path: str, data: bytes) -> Iterator[_Given]:
    """The pairs of a YAML mapping as text: `010`, `yes` and `1:30` mean here what they mean in a flag."""
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
            raise GpuschedError(f"{name} stands in this file twice", where=where)
        seen.add(name)
        text = _node_text(value_node, SETTINGS[name], where)
        if text:
            yield _Given(name, text, f"file {path}", where, os.path.dirname(path))


def _node_text(node: yaml.Node, setting: Setting, where: str) -> str:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if setting.is_list and isinstance(node, yaml.SequenceNode):
        return ",".join(_node_text(item, replace(setting, is_list=False), where) for item in node.value)
    raise GpuschedError(f"{setting.name} must be one value, not a list or a mapping", where=where)
