"""Which devices may be used: lists, masks, MIG, compute modes and what can never be met."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_USAGE, GpuschedError
from gpusched.core.model import Device
from gpusched.core.plan.selection import Selection, parse_gpu_list, select, visible_value
from tests.support import build
from tests.support.paths import TESTS

CASES = TESTS / "cases" / "files"


def gpu(index: int, name: str = "A5000") -> Device:
    return build.device(index, uuid=f"GPU-{index:08d}-aaaa-bbbb-cccc-{index:012d}", name=name)


def instance(parent: Device, number: int) -> Device:
    return build.device(
        parent.index, uuid=f"MIG-{parent.index}{number}000000-1111", name="1g.10gb", parent_uuid=parent.uuid
    )


BOX = tuple(gpu(index) for index in range(4))
MIXED = (gpu(0, "GTX 1660 SUPER"), gpu(1, "RTX 3090"))
PARENT = replace(gpu(0, "H100"), mig_parent=True)
PARTS = (instance(PARENT, 1), instance(PARENT, 2))
MIG_BOX = (PARENT, *PARTS, gpu(1, "H100"))


def indices(chosen: Selection, box: tuple[Device, ...] = BOX) -> list[int]:
    by_uuid = {device.uuid: device.index for device in box}
    return [by_uuid[uuid] for uuid in chosen.uuids]


def refusal(*args: Any, **options: Any) -> GpuschedError:
    with pytest.raises(GpuschedError) as caught:
        select(*args, **options)
    return caught.value


# ---- the user's list -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", json.loads((CASES / "30-gpuargs.json").read_text())["cases"], ids=lambda r: str(r["args"])
)
def test_forms_that_people_type(row: dict[str, Any]) -> None:
    given_options: dict[str, list[str]] = {}
    for word in row["args"]:
        if word.startswith("--"):
            given_options[word] = words = []
        else:
            words.append(word)
    stated = given_options.get("--gpu-list")
    options: dict[str, Any] = {"wanted": None if stated is None else " ".join(stated)}
    for option, name in (("--gpus-per-job", "gpus_per_job"), ("--max-gpus", "max_gpus")):
        if option in given_options:
            options[name] = int(given_options[option][0])
    if isinstance(row["means"], list):
        assert indices(select(BOX, **options)) == row["means"]
    elif row["means"].startswith("[2,3]"):
        assert indices(select(BOX, **options)) == [2, 3]
    else:
        with pytest.raises((GpuschedError, ValueError)):
            select(BOX, **options)


def test_refusals_name_what_is_wrong_and_what_is_there() -> None:
    assert "named more than once: 0, 1" in str(refusal(BOX, wanted="0,0,1,1"))
    assert "no GPU 4 here" in str(refusal(BOX, wanted="1,4"))
    assert "4 GPUs can never give 5 to one job" in str(refusal(BOX, gpus_per_job=5))
    assert "2 GPUs can never give 3 to one job" in str(refusal(BOX, wanted="1,2", gpus_per_job=3))
    assert "2 GPUs at once can never give 3" in str(refusal(BOX, max_gpus=2, gpus_per_job=3))


def test_order_is_preference() -> None:
    assert indices(select(BOX, wanted="3,0,1-2")) == [3, 0, 1, 2]
    assert indices(select(BOX)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("0,2-3", [0, 2, 3]),
        (" 0 , 2 ", [0, 2]),
        ("0 2", [0, 2]),
        ("002", [2]),
        ("GPU-00000003, 1", [3, 1]),
        ("", None),
        ("3-1", None),
        ("-1", None),
        ("cuda:0", None),
        ("1.5", None),
        ("0-999999", None),
    ],
)
def test_lists_of_gpus(wanted: str, chosen: list[int] | None) -> None:
    if chosen is None:
        with pytest.raises(ValueError, match="a list such as"):
            parse_gpu_list(wanted)
    else:
        assert indices(select(BOX, wanted=wanted)) == chosen


def test_uuids_and_their_beginnings() -> None:
    assert indices(select(BOX, wanted=f"{BOX[2].uuid},gpu-00000001")) == [2, 1]
    assert "begins more than one UUID" in str(refusal(BOX, wanted="GPU-0000"))
    assert "no GPU GPU-ffff" in str(refusal(BOX, wanted="GPU-ffff"))
    assert "named more than once" in str(refusal(BOX, wanted=f"1,{BOX[1].uuid}"))


# ---- the outer mask --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("1,0", [1, 0]),
        (" 2, 3", [2, 3]),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("GPU-00000002,GPU-00000000", [2, 0]),
        ("GPU-00000002,GPU-0000", [2]),
        ("GPU-00000002,0", [2]),
        ("1,GPU-00000002", [1]),
        ("0,x,1", [0]),
        ("0,,1", [0]),
    ],
)
def test_an_outer_mask_is_read_as_cuda_reads_it(mask: str, expected: list[int]) -> None:
    assert indices(select(BOX, outer_mask=mask)) == expected


@pytest.mark.parametrize("mask", ["", " ", "-1", "9", "NoDevFiles", "-1,0", "GPU-0"])
def test_a_mask_that_allows_nothing_is_a_clear_error(mask: str) -> None:
    error = refusal(BOX, outer_mask=mask)
    assert error.exit_code == EXIT_CANNOT_WORK
    assert "CUDA_VISIBLE_DEVICES" in str(error)
    assert "unset" in error.hint


@pytest.mark.parametrize("mask", ["2,2", "0,1,0", f"{BOX[2].uuid},{BOX[2].uuid}"])
def test_a_mask_that_names_a_gpu_twice_is_refused_as_a_list_is(mask: str) -> None:
    error = refusal(BOX, outer_mask=mask)
    assert f"CUDA_VISIBLE_DEVICES={mask}: named more than once: {mask.rpartition(',')[2]}" in str(error)
    assert error.exit_code == refusal(BOX, wanted="2,2").exit_code


def test_a_mask_that_is_cut_short_is_told() -> None:
    (warning,) = select(BOX, outer_mask="0,9,1").warnings
    assert "9 names no GPU" in warning
    assert not select(BOX, outer_mask="0,-1,1").warnings


def test_the_list_lies_inside_the_mask_and_counts_as_the_box_does() -> None:
    assert indices(select(BOX, wanted="3", outer_mask="2,3")) == [3]
    error = refusal(BOX, wanted="0", outer_mask="2,3")
    assert error.exit_code == EXIT_USAGE
    assert "GPU 0 is outside of CUDA_VISIBLE_DEVICES=2,3" in str(error)
    assert "2 GPUs can never give 3" in str(refusal(BOX, outer_mask="2,3", gpus_per_job=3))


def test_indices_of_a_mixed_box_are_read_in_pci_order() -> None:
    (warning,) = select(MIXED, outer_mask="0").warnings
    assert "PCI order" in warning
    assert not select(MIXED, outer_mask="0", outer_order="PCI_BUS_ID").warnings
    assert not select(MIXED, outer_mask="GPU-00000000").warnings
    assert not select(BOX, outer_mask="0").warnings


def test_another_device_order_is_told() -> None:
    (warning,) = select(BOX, outer_order="FASTEST_FIRST").warnings
    assert "jobs get PCI_BUS_ID" in warning


# ---- MIG and compute modes -------------------------------------------------------------------------


def test_a_mig_parent_stands_for_its_instances() -> None:
    everything = (PARTS[0].uuid, PARTS[1].uuid, MIG_BOX[3].uuid)
    assert select(MIG_BOX).uuids == everything
    assert select(MIG_BOX, wanted="0").uuids == everything[:2]
    assert select(MIG_BOX, wanted=PARENT.uuid).uuids == everything[:2]
    assert select(MIG_BOX, wanted="MIG-02").uuids == everything[1:2]
    assert select(MIG_BOX, outer_mask="0").uuids == everything[:2]
    assert select(MIG_BOX, outer_mask=PARTS[1].uuid).uuids == everything[1:2]
    assert select(MIG_BOX, wanted="0", outer_mask=PARTS[1].uuid).uuids == everything[1:2]
    assert "named more than once" in str(refusal(MIG_BOX, wanted=f"0,{PARTS[0].uuid}"))


def test_older_names_of_instances() -> None:
    old = replace(PARTS[0], uuid=f"MIG-{PARENT.uuid}/1/0")
    assert select((PARENT, old), outer_mask=old.uuid).uuids == (old.uuid,)
    assert select((PARENT, old), wanted=old.uuid).uuids == (old.uuid,)


def test_a_job_gets_one_instance_at_most() -> None:
    assert "no more than one MIG instance" in str(refusal(MIG_BOX, gpus_per_job=2))
    assert select((*MIG_BOX, gpu(2)), gpus_per_job=2).uuids == (MIG_BOX[3].uuid, gpu(2).uuid)


def test_a_parent_without_instances_is_not_used() -> None:
    chosen = select((PARENT, gpu(1)))
    assert chosen.uuids == (gpu(1).uuid,)
    assert "has no instance" in chosen.warnings[0]
    assert refusal((PARENT,)).exit_code == EXIT_CANNOT_WORK


def test_a_prohibited_device_is_never_used() -> None:
    closed = replace(BOX[1], compute_mode="prohibited")
    chosen = select((BOX[0], closed))
    assert chosen.uuids == (BOX[0].uuid,)
    assert "PROHIBITED" in chosen.warnings[0]
    error = refusal((BOX[0], closed), wanted="1")
    assert error.exit_code == EXIT_CANNOT_WORK
    assert "PROHIBITED" in str(error)
    parent = replace(PARENT, compute_mode="prohibited")
    assert select((parent, *PARTS, gpu(1))).uuids == (gpu(1).uuid,)


def test_cpu_jobs_ask_for_no_gpu() -> None:
    assert select((), gpus_per_job=0) == Selection(())
    assert select(BOX, outer_mask="", gpus_per_job=0) == Selection(())
    assert refusal(()).exit_code == EXIT_CANNOT_WORK


# ---- CUDA_VISIBLE_DEVICES --------------------------------------------------------------------------


def test_the_form_of_what_a_job_gets() -> None:
    mine = (BOX[2].uuid, BOX[0].uuid)
    assert visible_value(BOX, mine, "auto", False) == "2,0"
    assert visible_value(BOX, mine, "auto", True) == ",".join(mine)
    assert visible_value(BOX, mine, "uuid", False) == ",".join(mine)
    assert visible_value(BOX, mine, "index", True) == "2,0"
    assert visible_value(BOX, (), "auto", False) == ""
    assert visible_value(MIG_BOX, (MIG_BOX[3].uuid,), "auto", False) == MIG_BOX[3].uuid
    assert visible_value(MIG_BOX, (MIG_BOX[3].uuid,), "index", False) == "1"
    assert visible_value(MIG_BOX, (PARTS[0].uuid,), "index", False) == PARTS[0].uuid
    assert visible_value(BOX, ("GPU-gone",), "index", False) == "GPU-gone"


# ---- properties ------------------------------------------------------------------------------------

TOKEN = st.sampled_from(["0", "1", "3", "5", "0-1", "2-3", "GPU-00000001", "GPU-0", "MIG-01", BOX[2].uuid, "-1", ""])
WANTED = st.none() | st.lists(TOKEN.filter(lambda token: token not in ("-1", "")), min_size=1, max_size=4).map(",".join)
TEXT = st.none() | st.lists(TOKEN, max_size=4).map(",".join)


@settings(max_examples=60)
@given(st.sampled_from([BOX, MIXED, MIG_BOX]), WANTED, TEXT, st.integers(0, 3), st.none() | st.integers(0, 5))
def test_a_choice_is_usable_or_refused_with_words(
    box: tuple[Device, ...], wanted: str | None, mask: str | None, per_job: int, at_once: int | None
) -> None:
    try:
        chosen = select(box, wanted=wanted, outer_mask=mask, gpus_per_job=per_job, max_gpus=at_once)
    except GpuschedError as error:
        assert error.what
        assert error.exit_code in (EXIT_USAGE, EXIT_CANNOT_WORK)
        return
    by_uuid = {device.uuid: device for device in box}
    devices = [by_uuid[uuid] for uuid in chosen.uuids]
    assert len(set(chosen.uuids)) == len(devices) >= per_job
    assert not any(device.mig_parent for device in devices)
    assert per_job < 2 or not any(device.is_mig for device in devices)


def test_a_range_has_a_dash_or_two_dots() -> None:
    assert parse_gpu_list("3..5,0-1 GPU-a") == ("3-5", "0-1", "GPU-a")
    with pytest.raises(ValueError, match="runs backwards"):
        parse_gpu_list("5..3")
