"""The settings: one table, from which the files, the variables, the flags, the help and the docs are made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from gpusched.common.errors import stored_value
from gpusched.common.quantities import format_duration, parse_memory, parse_size
from gpusched.common.text import mask_urls
from gpusched.config import values

ENV_PREFIX = "GPUSCHED_"
DEFAULT_MAX_GPUS = 4

# The groups of options in --help.
LIST = "The list"
GPUS = "Which GPUs"
JOBS = "Each job"
FAILURES = "Failures"
OUTPUT = "Output"


class Setting(NamedTuple):
    """One row of the table."""

    name: str
    parse: Callable[[str], object]
    default: object
    help: str  # imperative, without a final full stop; with its default one line of an 80-column terminal
    more: str = ""  # for the reference: what the help has no room for
    group: str = ""  # in OPTIONS; empty: it is not there
    is_rare: bool = False
    metavar: str = ""  # empty for a switch
    choices: tuple[str, ...] = ()
    is_path: bool = False
    is_list: bool = False  # a file may give a YAML list
    shown_default: str = ""
    aliases: tuple[str, ...] = ()  # further flags
    hint: str = ""  # added to the error about a bad value
    is_secret: bool = False  # URLs that hold passwords: shown by their scheme, and never on a command line

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
        """Return the default as the help and the docs show it."""
        return self.shown_default or show(self, self.default)

    def masked(self, value: Any) -> Any:
        """Return the value as it may be seen."""
        return mask_urls(value) if self.is_secret and value is not None else value

    def flags_for(self, value: object) -> list[str]:
        """Return the words of a command line that give this value; a secret is masked in them."""
        if self.is_switch:
            return [self.flag if value else f"--no-{self.flag[2:]}"]
        return [self.flag, show(self, value)]


def _row(default: Any, parse: Callable[[str], object], help: str, **more: Any) -> Any:
    """Return a field of `Settings` that carries its row."""
    return field(default=default, metadata={"parse": parse, "help": help, **more})


def _count(default: int | None, least: int, help: str, metavar: str = "N", **more: Any) -> Any:
    return _row(default, values.whole(least), help, metavar=metavar, **more)


def _time(default: float | None, help: str, metavar: str = "TIME", zero: bool = False, **more: Any) -> Any:
    return _row(default, values.duration(zero=zero), help, metavar=metavar, **more)


def _text(help: str, metavar: str, parse: Callable[[str], object] = values.some_text, **more: Any) -> Any:
    return _row(None, parse, help, metavar=metavar, **more)


def _path(help: str, metavar: str = "DIR", **more: Any) -> Any:
    return _text(help, metavar, is_path=True, **more)


def _switch(help: str, **more: Any) -> Any:
    return _row(False, values.switch, help, **more)


def _choice(words: str, help: str, **more: Any) -> Any:
    """Return the field of a setting that is one of the `words`; the first one is the default."""
    choices = tuple(words.split())
    more = {"metavar": "|".join(choices), **more}
    return _row(choices[0], values.one_of(*choices), help, choices=choices, **more)


# The options of the verbs that run jobs, by their group in --help: those that it lists, and those that are accepted
# too, but that only the reference and `gpusched config` show. Settings that are not here are no options of these verbs.
OPTIONS = {
    LIST: ("", "strip_gpu_env"),
    GPUS: (
        "max_gpus gpu_list gpu_mem_threshold max_checks free_when simulate max_jobs_per_gpu",
        "poll_interval visible_devices allow_unreadable_memory gpu_strategy max_bypass max_yield tag_max_gpus tag_mem "
        "safety_factor",
    ),
    JOBS: ("gpus_per_job mem time_limit snapshot", "cpu_jobs cpus ram grace setup shell leftovers"),
    FAILURES: ("retries max_fails", "max_quick_fails on_dep_fail idle_timeout idle_action"),
    OUTPUT: ("log_dir", "split_streams on_end on_fail notify report"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, typed; durations are seconds. The fields are the rows of the table."""

    max_gpus: int | None = _count(
        None,
        1,
        "Use at most N GPUs at once",
        more="the default is gpus_per_job where that is more",
        shown_default=str(DEFAULT_MAX_GPUS),
    )
    gpu_list: str | None = _text(
        "Use only these GPUs: 0,1,4-7, UUIDs",
        "LIST",
        values.gpu_list,
        more="in order of preference; several words (4 5 6 7) are one list",
        is_list=True,
        shown_default="all",
    )
    gpu_mem_threshold: int = _count(
        500,
        1,
        "Ignore memory of others below this",
        metavar="MIB",
        more="a GPU on which others use less counts as free",
        hint="a GPU is free while foreign memory is strictly below this; with 0 none ever would be",
    )
    max_checks: int = _count(
        10,
        1,
        "Use a GPU seen free N times in a row",
        more="one look each poll_interval: 10 looks, 2 s apart, take 18 s; GPUs are looked at while jobs run, too",
        hint="1 takes a GPU that is free at the first look",
    )
    poll_interval: float = _time(2.0, "Look at the GPUs every S seconds", metavar="S")
    free_when: str = _choice(
        "auto memory idle",
        "Judge by auto, memory or idle",
        more="auto goes by memory, and no foreign compute process may have worked on it during the checks; "
        "memory goes by memory alone; idle goes by memory, and wants no foreign compute process on it",
        metavar="RULE",
    )
    gpus_per_job: int = _count(
        1,
        0,
        "Give each job N GPUs",
        more="--gpus-per-job 0: CPU jobs, which see no GPU and wait for none",
        aliases=("--gpus",),
    )
    mem: str | None = _text(
        "State the GPU memory that each job needs: 18G, auto",
        "SIZE",
        values.memory,
        more="on each of its GPUs; such jobs may share a GPU",
    )
    cpu_jobs: int = _count(2, 1, "Run at most N CPU jobs at once")
    cpus: int | None = _count(
        None, 1, "Share N cores among the jobs that state cpus=", shown_default="those of this box"
    )
    ram: str | None = _text(
        "Share so much memory of the host among the jobs that state ram=",
        "SIZE",
        values.size,
        shown_default="90 % of this box's",
    )
    time_limit: float | None = _time(
        None,
        "Stop a job after this time: 90 (s), 90m, 2:00:00",
        more="the time of one attempt; a bare number is seconds, and Slurm's 1-12:00:00 is taken, too",
        aliases=("--time",),
    )
    retries: int = _count(0, 0, "Try a failed job again, up to N times")
    grace: float = _time(10.0, "Wait this long between TERM and KILL when a job is stopped", zero=True)
    log_dir: str | None = _path(
        "Keep queue and logs here, not in gpusched-runs",
        more="the directory of the queue with its logs and its metrics",
        shown_default="gpusched-runs/<stem of FILE>",
    )
    visible_devices: str = _choice(
        "auto index uuid", "Write indices or UUIDs into CUDA_VISIBLE_DEVICES; auto writes indices where these are safe"
    )
    setup: str | None = _path("Source this file in the shell before each command", metavar="FILE")
    shell: str = _row("bash", values.some_text, "Run the commands with this shell", metavar="SHELL")
    leftovers: str = _choice(
        "wait stop", "Wait for processes that a command leaves behind, or stop them, before its GPU is given on"
    )
    split_streams: bool = _switch("Write stdout and stderr of a job into two files")
    allow_unreadable_memory: bool = _switch(
        "Use GPUs whose memory cannot be read too, judged by their processes and utilisation"
    )
    strip_gpu_env: bool = _switch(
        "Remove CUDA_VISIBLE_DEVICES=… from the commands, so that each uses the GPU of its job"
    )
    simulate: str | None = _text("Simulate GPUs, on any machine: 4, 4xA100", "N[xMODEL]")
    claims_dir: str | None = _path(
        "Keep the locks that all users of this box share in this directory",
        shown_default="first of /run/lock, /dev/shm, /tmp that fits",
    )
    state_dir: str | None = _path(
        "Keep queue.db and locks here for queues on a network file system (a local disk, yours alone)",
        shown_default="your own state directory",
    )
    max_jobs_per_gpu: int = _count(4, 1, "Let up to N jobs with mem= share a GPU")
    gpu_strategy: str = _choice(
        "fill-first round-robin memory-aware",
        "Choose GPUs for jobs that state their memory: fill those in use, spread, or take the emptiest",
    )
    max_bypass: float = _time(
        600.0,
        "For this long, let smaller jobs start before a larger one that waits; then keep GPUs free for it",
        more="0: no job starts before a larger one that waits",
        zero=True,
    )
    max_yield: float | None = _time(
        None,
        "For this long, leave a free GPU to another user who waits for one and comes first",
        more="of two users the one with fewer GPUs comes first, then the one who waits longer",
        zero=True,
        shown_default="3 times that user's max_checks * poll_interval, from 2m to 1h",
    )
    max_gpus_per_user: int | None = _count(
        None,
        1,
        "Hold at most N GPUs at once in all your queues, `exec` and `reserve` together; the least value counts",
        shown_default="not limited",
    )
    tag_max_gpus: str | None = _text(
        "Use at most so many GPUs at once for the jobs of a tag: ablation=2,prep=1", "TAG=N,...", values.tag_limits
    )
    tag_mem: str | None = _text(
        "Count jobs with mem=auto of a tag with this memory: train=18G,eval=4G", "TAG=SIZE,...", values.tag_sizes
    )
    safety_factor: float = _row(
        0.9,
        values.fraction,
        "Let the largest memory seen of jobs with mem=auto fill so much of their budget",
        metavar="F",
    )
    max_fails: int | None = _count(None, 1, "Start nothing more after N failed jobs")
    max_quick_fails: int = _count(
        3, 0, "Hold the jobs of a program after N quick failures of it by one error, in a row; 0: never"
    )
    on_dep_fail: str = _choice("cancel hold", "Cancel or hold a job when one that it depends on has failed")
    idle_timeout: float | None = _time(None, "Report a job whose GPUs show no process of its own for this long")
    idle_action: str = _choice("report stop", "Report an idle job only, or stop it")
    on_end: str | None = _text(
        "Run this command when all jobs have ended",
        "CMD",
        more="a standing queue does so each time that it has worked and becomes idle",
    )
    on_fail: str | None = _text("Run this command when a job has failed, at most once a minute", "CMD")
    notify: str | None = _text(
        "Send messages to URLs of Apprise: at the end, at the first failure, when jobs are held or a GPU is lost",
        "URL",
        values.urls,
        is_list=True,
        is_secret=True,
    )
    report: bool = _switch(
        "Write report.html into the directory of the queue when a run has ended, as gpusched report does"
    )
    metrics_textfile: str | None = _path(
        "Write the state of queue and GPUs here every 30 s, as text for node_exporter's textfile collector"
    )
    snapshot: bool = _switch("Run the jobs from a copy of the git work tree", more="as it is now")
    settle_timeout: float = _time(
        30.0, "Wait this long for a GPU's memory to come back after a job, then set the GPU aside", zero=True
    )

    idle_exit: float = _time(
        600.0, "Have the dispatcher of a standing queue leave after this long without a job", zero=True
    )
    autostart: bool = _row(True, values.switch, "Start a dispatcher when jobs are submitted to a queue without one")

    @property
    def gpus_at_once(self) -> int:
        """`max_gpus` with its default worked out, within `max_gpus_per_user`."""
        gpus = max(DEFAULT_MAX_GPUS, self.gpus_per_job) if self.max_gpus is None else self.max_gpus
        return min(gpus, self.max_gpus_per_user or gpus)

    def jobs_at_once(self, gpus: int) -> int:
        """Return how many jobs that have their GPUs alone run at once on so many allowed GPUs; at least 1."""
        return max(1, min(gpus, self.gpus_at_once) // self.gpus_per_job)

    @property
    def mem_bytes(self) -> int:
        """`mem` in bytes; AUTO_MEMORY for auto, 0 without one."""
        return parse_memory(self.mem) if self.mem else 0

    @property
    def tag_limits(self) -> dict[str, int]:
        """`tag_max_gpus` by tag."""
        return {tag: int(n) for tag, n in (word.split("=") for word in (self.tag_max_gpus or "").split(",") if word)}

    @property
    def tag_mem_bytes(self) -> dict[str, int]:
        """`tag_mem` by tag."""
        words = (word.rpartition("=") for word in (self.tag_mem or "").split(",") if word)
        return {tag: parse_size(size) for tag, _, size in words}

    def to_json(self) -> str:
        """Return all values, for the dispatcher that works on the same queue."""
        return json.dumps(asdict(self))

    def with_values(self, values: Mapping[str, object]) -> Settings:
        """Return the settings with these values, as JSON has them, in the place of their own."""
        return self.from_json(json.dumps({**asdict(self), **values}))

    @classmethod
    @stored_value()
    def from_json(cls, text: str) -> Settings:
        """Return the settings that to_json() wrote, without names that only another version knows."""
        return cls(**{name: value for name, value in json.loads(text).items() if name in SETTINGS})


_LISTED = {name: group for group, (listed, _) in OPTIONS.items() for name in listed.split()}
_RARE = {name: group for group, (_, rare) in OPTIONS.items() for name in rare.split()}
_GROUPS = {**_LISTED, **_RARE}
SETTINGS: Mapping[str, Setting] = {
    f.name: Setting(f.name, default=f.default, group=_GROUPS.get(f.name, ""), is_rare=f.name in _RARE, **f.metadata)
    for f in fields(Settings)
}
RUN_SETTINGS = tuple(name for name in SETTINGS if name in _GROUPS)  # of the verbs that run jobs


def show(setting: Setting, value: object) -> str:
    """Return a value as a person would write it into a file."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if value < 60 else format_duration(value)
    return str(setting.masked(value))


def changed(before: Settings, after: Settings) -> list[str]:
    """Return the differences, each as "max_gpus 1 -> 4"."""
    names = [name for name in SETTINGS if getattr(before, name) != getattr(after, name)]
    return [f"{SETTINGS[name].name} {_shown(before, name)} -> {_shown(after, name)}" for name in names]


def _shown(settings: Settings, name: str) -> str:
    setting, value = SETTINGS[name], getattr(settings, name)
    return setting.default_text() if value is None else show(setting, value)
