"""Changes of what waiting jobs need: their attributes, their command, what they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gpusched.common.errors import GpuschedError
from gpusched.common.text import ranges
from gpusched.config.settings import Settings
from gpusched.core.jobs.job import NO_ATTRIBUTES, round_budget
from gpusched.core.model import DependencyKind, JobRow, JobState, Requirements
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table, submission
from gpusched.host.store.rows import NEEDS
from gpusched.lists.attributes import ENV, FIELDS, make, value_text
from gpusched.lists.submit import SubmitOptions, parse_command, refused
from gpusched.operations import queues
from gpusched.operations.addresses import find_jobs
from gpusched.operations.change.requests import ChangeReport, have_them_run
from gpusched.operations.run.stored import stored_settings
from gpusched.views.words import moment

KINDS = [kind.value for kind in DependencyKind]
_AT_REST = Requirements()


class JobEdit(NamedTuple):
    """The changes that a person wants. `attributes`: parsed values by key; None takes back what the job states."""

    attributes: Mapping[str, Any] = MappingProxyType({})
    command: str | None = None
    begin_at: float | None = None

    @property
    def words(self) -> list[str]:
        """The changes with their new values, but for those of variables, which may be secrets."""
        words = ["command"] if self.command is not None else []
        if self.begin_at is not None:
            words.append(f"begin={moment(self.begin_at, queues.now())}" if self.begin_at else "begin=")
        for key, value in self.attributes.items():
            text = "" if value is None else value_text(key, value)
            words.append(key if key.startswith(ENV) else f"{key}={text}")
        return words


def edit(queue_dir: QueueDir, jobs: Sequence[str], changes: JobEdit) -> ChangeReport:
    """Change these waiting jobs, and report what was done and what was not.

    Raises GpuschedError for what no job can have.
    """
    report = ChangeReport(queue_dir.path)
    if not jobs or not changes.words:
        what = "no job is named" if not jobs else "nothing is to be changed"
        hint = "for example: gpusched edit 12 --mem 24G; gpusched edit --help lists the options"
        raise GpuschedError(what, hint=hint)
    with queues.open_store(queue_dir, read_only=False) as store:
        ids = find_jobs(store, jobs, to_change=True)
        if len(ids) > 1 and changes.attributes.get("name"):
            raise GpuschedError("is for a single job", where="--name", hint="--tag puts several jobs into a group")
        settings = stored_settings(store)
        command = None if changes.command is None else _parse_command(changes.command, settings)
        store.change_each(ids, lambda job_id: _edit_one(store, job_id, changes, command, settings, report))
        queue_dir.ring()
        edited = [job_id for job_id in ids if job_id not in report.refused]
        listed = [job_id for job_id in edited if job_table.get(store, job_id).origin == "list"]
        if listed:
            which = f"job {listed[0]} is" if len(listed) == 1 else f"jobs {ranges(listed)} are"
            report.notes.append(f"{which} of a list: what was edited holds until that list is started again, or saved")
        if edited:
            report.notes += have_them_run(queue_dir, store)
    return report


def _edit_one(
    store: Store, job_id: int, changes: JobEdit, command: bytes | None, settings: Settings, report: ChangeReport
) -> None:
    row = job_table.get(store, job_id)
    if row.state not in (JobState.QUEUED, JobState.HELD):
        verb = "has" if row.state in (JobState.SUCCEEDED, JobState.FAILED) else "is"
        report.add(job_id, f"{verb} {row.state.value}: only waiting jobs can be edited", refused=True)
        return
    needs = _needs(row, changes, settings)
    above_bytes = 0 if "mem" in changes.attributes or not needs.gpus else row.above_bytes
    job_table.edit(store, job_id, needs, command=command, above_bytes=above_bytes)
    stated = {kind: changes.attributes[kind] or () for kind in KINDS if kind in changes.attributes}
    if stated:
        try:
            submission.change_dependencies(store, job_id, stated)
        except GpuschedError as error:
            error.where, error.hint = f"job {job_id}", error.hint.replace("of this list ", "")
            raise
    report.add(job_id, f"edited: {', '.join(changes.words)}")


def _needs(row: JobRow, changes: JobEdit, settings: Settings) -> Requirements:
    """Return what the job needs with these changes; what they do not name stays."""
    stated = {key: value for key, value in changes.attributes.items() if value is not None}
    own = make(stated)
    values: dict[str, Any] = {name: getattr(row, name) for name in NEEDS if name != "shape"}
    for key in changes.attributes:
        if name := FIELDS.get(key):
            values[name] = getattr(own if key in stated else _AT_REST, name)
    if "mem" in changes.attributes:
        mem_bytes = values["mem_bytes"] or 0
        values |= {"mem_bytes": round_budget(mem_bytes), "stated_mem_bytes": mem_bytes}
    if changes.begin_at is not None:
        values["begin_at"] = changes.begin_at
    if not values["gpus"]:
        values |= {"mem_bytes": 0, "stated_mem_bytes": 0, "gpu_model": "", "alone": False}
    values["env"] = tuple({**dict(row.env), **dict(own.env)}.items())
    return Requirements(**values, limited_tags=tuple(tag for tag in values["tags"] if tag in settings.tag_limits))


def _parse_command(text: str, settings: Settings) -> bytes:
    jobs = refused(parse_command(text, SubmitOptions(settings, b"/")), "--command")
    if len(jobs.specs) != 1 or jobs.specs[0].attributes != NO_ATTRIBUTES:
        hint = "what a job needs is edited by options, such as --mem 24G"
        raise GpuschedError("is to be one command without attributes", where="--command", hint=hint)
    return jobs.specs[0].command
