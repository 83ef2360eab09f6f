"""The simulation's files and the source that reads them."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from gpusched.common import simulation
from gpusched.common.errors import GpuschedError
from gpusched.common.processes import process_start
from gpusched.core.model import MIB, Reading
from gpusched.host.gpus.device_source import open_source
from gpusched.host.gpus.simulated import SimulatedSource


@pytest.fixture
def directory(tmp_path: Path) -> str:
    path = str(tmp_path / "sim")
    simulation.create(path, ["A100", "T4"])
    return path


def look(source: SimulatedSource, *uuids: str, now: float = 100.0) -> Reading:
    source.request(frozenset(uuids) or None, now)
    (reading,) = source.poll(now)
    return reading


def hold(directory: str, n: int, **keys: object) -> str:
    """Let this process hold memory; the path of its record."""
    path = f"{directory}/gpu{n}/p/{simulation.own_name()}"
    simulation.write_keys(path, keys)
    return path


def hold_dead(directory: str, n: int, **keys: object) -> str:
    """A record of a process that is gone."""
    path = f"{directory}/gpu{n}/p/{os.getpid()}-1"
    simulation.write_keys(path, keys)
    return path


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("4", "4xA100"),
        ("1xt4", "1xT4"),
        ("2xA100+2xT4", "2xA100+2xT4"),
        ("A100, T4", "1xA100+1xT4"),
        ("2xA100-40gb", "2xA100-40GB"),
        ("1xA100+1xA100", "2xA100"),
        (" 8 x H100 ", "8xH100"),
    ],
)
def test_a_spec_has_one_normal_form(spec: str, name: str) -> None:
    assert simulation.spec_name(simulation.parse_spec(spec)) == name


def test_an_unknown_model_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"no model Z80; there are A100, .*H100"):
        simulation.parse_spec("4xZ80")


def test_the_default_place_is_private_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = simulation.locate("2", {})
    assert directory == simulation.locate("2xA100", {}) == f"{tmp_path}/gpusched-simulations-{os.getuid()}/2xA100"
    assert stat.S_IMODE(os.stat(directory).st_mode) == stat.S_IMODE(os.stat(f"{directory}/..").st_mode) == 0o700
    assert directory != simulation.locate("3", {})
    assert simulation.locate(directory, {}) == directory


def test_a_place_that_is_no_directory_of_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"gpusched-simulations-{os.getuid()}").symlink_to("/tmp")
    with pytest.raises(ValueError, match="belongs to another user"):
        simulation.locate("2", {})


def test_the_environment_names_the_directory(directory: str) -> None:
    environment = {simulation.ENV_DIRECTORY: directory}
    assert simulation.locate(None, environment) == simulation.locate("A100+T4", environment) == directory
    with pytest.raises(ValueError, match="is 1xA100\\+1xT4, not 8xA100"):
        simulation.locate("8", environment)
    with pytest.raises(GpuschedError, match="no simulation in /not/here") as caught:
        open_source(environment={simulation.ENV_DIRECTORY: "/not/here"})
    assert caught.value.where == "GPUSCHED_SIMULATION"


def test_two_simulations_share_no_uuid(tmp_path: Path) -> None:
    uuids = set()
    for name in ("a", "b"):
        simulation.create(str(tmp_path / name), ["T4"] * 4)
        uuids |= {device.uuid for device in look(SimulatedSource(str(tmp_path / name))).devices}
    assert len(uuids) == len({uuid[:12] for uuid in uuids}) == 8


def test_lines_that_are_added_to_a_state_count(directory: str) -> None:
    source = SimulatedSource(directory)
    look(source)
    with open(f"{directory}/gpu1/state", "a") as file:
        file.write("foreign=700\nfail=lost\nfail=ok\nutil=12\n")
    sample = look(source).samples[1]
    assert (sample.used_bytes, sample.utilisation) == (700 * MIB, 0.12)
    assert (sample.processes, sample.error) == ((), None)


def test_the_load_of_processes_adds_up(directory: str) -> None:
    hold(directory, 0, mib=500, util=60)
    with subprocess.Popen(["sleep", "60"]) as other:
        path = f"{directory}/gpu0/p/{other.pid}-{process_start(other.pid)}"
        simulation.write_keys(path, {"mib": 1, "util": 60})
        assert look(SimulatedSource(directory)).samples[0].utilisation == 1.0
        other.kill()


def test_what_the_dead_held_comes_back_and_the_log_has_it(directory: str) -> None:
    path = hold_dead(directory, 0, mib=8000)
    sample = look(SimulatedSource(directory)).samples[0]
    assert (sample.used_bytes, sample.processes) == (0, ())
    assert not os.path.exists(path)
    assert '"dead"' in Path(directory, "events.log").read_text()


def test_memory_may_come_back_late(directory: str) -> None:
    simulation.change_keys(f"{directory}/box", release_ms=3000)
    path = hold_dead(directory, 0, mib=8000)
    source = SimulatedSource(directory)
    sample = look(source).samples[0]
    assert (sample.used_bytes, sample.processes) == (8000 * MIB, ())
    os.utime(f"{path}.dead", (time.time() - 3, time.time() - 3))
    assert look(source).samples[0].used_bytes == 0
    assert os.listdir(f"{directory}/gpu0/p") == []


def test_a_simulation_that_is_removed_is_an_outage(directory: str) -> None:
    source = SimulatedSource(directory)
    os.rename(directory, f"{directory}.gone")
    source.request(None, 100.0)
    assert source.poll(100.0) == [] and "simulation is gone" in str(source.trouble())
    os.rename(f"{directory}.gone", directory)
    assert look(source).complete and source.trouble() is None


def test_half_written_and_foreign_files_are_no_processes(directory: str) -> None:
    for name in ("README", "1-", "-2", f"{simulation.own_name()}.99.tmp"):
        Path(directory, "gpu0", "p", name).write_text("mib=9\n")
    hold(directory, 0)
    assert look(SimulatedSource(directory)).samples[0].used_bytes == 0


def test_readings_cost_little(directory: str) -> None:
    source = SimulatedSource(directory)
    uuid = look(source).devices[0].uuid
    began = time.process_time()
    for _ in range(100):
        look(source, uuid)
    assert time.process_time() - began < 0.1  # 1 ms each; 0.03 ms is usual


def test_a_board_tells_its_temperature_only_where_it_was_set(directory: str) -> None:
    simulation.change_keys(f"{directory}/gpu1/state", temp=71, power_w=240)
    silent, told = look(SimulatedSource(directory)).samples
    assert (silent.temperature_c, silent.power_w, told.temperature_c, told.power_w) == (None, None, 71, 240)
