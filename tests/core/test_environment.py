"""What is kept of the environment of a submission."""

from __future__ import annotations

import pytest

from gpusched.core.jobs.environment import exported, variables

SHELL = {
    b"PATH": b"/bin",
    b"HOME": b"/home/ada",
    b"WANDB_MODE": b"offline",
    b"EMPTY": b"",
    b"LINES": b"a\nb=c",
    b"BAD": b"\xff",
    b"CUDA_VISIBLE_DEVICES": b"3",
    b"CUDA_DEVICE_ORDER": b"FASTEST_FIRST",
    b"NVIDIA_VISIBLE_DEVICES": b"all",
    b"GPUSCHED_JOB_ID": b"7",
    b"GPUSCHED_MAX_GPUS": b"1",
    b"_": b"/usr/bin/gpusched",
}
CHOOSES = {name for name in SHELL if b"DEVICE" in name or name.startswith(b"GPUSCHED") or name == b"_"}


@pytest.mark.parametrize(
    ("export", "names"),
    [
        ("all", SHELL.keys() - CHOOSES),
        ("none", {b"PATH", b"HOME"}),
        ("WANDB_MODE,MISSING", {b"PATH", b"HOME", b"WANDB_MODE"}),
        ("CUDA_VISIBLE_DEVICES", {b"PATH", b"HOME"}),
    ],
)
def test_a_job_gets_what_is_exported_and_nothing_that_chooses_gpus(export: str, names: set[bytes]) -> None:
    kept = variables(exported(SHELL, export))
    assert kept == {name: SHELL[name] for name in names}


def test_equal_environments_are_equal_bytes() -> None:
    turned = dict(reversed(SHELL.items()))
    assert exported(SHELL) == exported(turned)
    assert variables(b"") == {}
