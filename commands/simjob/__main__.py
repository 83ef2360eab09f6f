"""Simulate a CUDA job on the simulated GPUs that CUDA_VISIBLE_DEVICES names. Touches only the simulation.

It takes memory, prints and fails as a training does. As a job on real GPUs it only prints: it takes no memory there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence

from gpusched.common import simulation
from gpusched.common.processes import user_name
from gpusched.common.progress_file import ProgressFile

LOOK_S = 0.1  # interval at which a running job checks that its GPU is still there


class CudaError(Exception):
    """An error of CUDA with the text that PyTorch prints."""


def visible_devices(directory: str, environment: Mapping[str, str]) -> list[int]:
    """Return the GPUs that CUDA would show, as numbers of the simulation, in PCI order."""
    states = {n: simulation.read_keys(_state_path(directory, n)) for n in simulation.gpu_numbers(directory)}
    present = [n for n, state in states.items() if state.get("present") != "0"]
    mask = environment.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return present
    visible: list[int] = []
    for item in (word.strip() for word in mask.split(",")):
        if item.isdigit():
            hits = present[int(item) : int(item) + 1]
        else:
            hits = [n for n in present if item and states[n].get("uuid", "").startswith(item)]
        if len(hits) != 1:  # CUDA stops at the first unknown one
            break
        visible += hits
    return visible if len(set(visible)) == len(visible) else []  # a repeated GPU empties the list


class SimulatedJob:
    """The memory of this process on its GPUs."""

    def __init__(self, directory: str, gpus: Sequence[int], args: argparse.Namespace) -> None:
        self.directory = directory
        self.gpus = gpus
        self.args = args
        self.holder = _holder(is_colleague=args.device is not None)
        self.name = simulation.own_name()

    def state(self, n: int) -> dict[str, str]:
        return simulation.read_keys(_state_path(self.directory, n))

    def record_path(self, n: int) -> str:
        return os.path.join(simulation.gpu_path(self.directory, n), "p", self.name)

    def take(self, mib: int) -> None:
        """Take so much memory on each GPU, in all. Raises CudaError if there is not enough."""
        for ordinal, n in enumerate(self.gpus):
            with simulation.locked(self.directory):
                self._take_on(ordinal, n, mib)

    def _take_on(self, ordinal: int, n: int, mib: int) -> None:
        state = self.state(n)
        _check_health(state, "unknown error")
        records = simulation.holders(self.directory, n, self._release_ms())
        rivals = [record for record in records if record.name != self.name]
        total = simulation.number(state["total"])
        free = total - simulation.number(state.get("foreign")) - sum(record.mib for record in rivals)
        if mib > free:
            simulation.log(self.directory, "oom", gpu=n, name=self.name, job=self.holder, mib=mib)
            raise CudaError(_out_of_memory(ordinal, mib, total, free))
        keys: dict[str, object] = {
            "mib": mib,
            "user": self.args.user,
            "program": "simjob",
            "kind": "C",
            "util": self.args.util,
            "job": self.holder,
            "foreign": int(self.args.device is not None),
        }
        simulation.write_keys(self.record_path(n), keys)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        early = any(not record.alive for record in rivals)
        more = {"job": self.holder, "foreign": keys["foreign"], "unreleased": early, "visible": visible}
        simulation.log(self.directory, "grab", gpu=n, name=self.name, mib=mib, **more)

    def release(self) -> None:
        """End in order: the memory is freed after the driver's delay."""
        delay_ms = self._release_ms()
        for n in self.gpus:
            path = self.record_path(n)
            if not os.path.exists(path):
                continue
            simulation.log(self.directory, "exit", gpu=n, name=self.name)
            if delay_ms:
                with open(f"{path}.dead", "a"):
                    pass
            else:
                os.unlink(path)

    def stay(self, seconds: float) -> None:
        """Wait for `seconds`; fail as CUDA programs do if a GPU is lost."""
        end = time.monotonic() + seconds
        while True:
            if self.args.device is None:
                for n in self.gpus:
                    _check_health(self.state(n), "unspecified launch failure")
            rest = end - time.monotonic()
            if rest <= 0:
                return
            time.sleep(min(rest, LOOK_S))

    def _release_ms(self) -> int:
        if not self.gpus:
            return 0
        return simulation.number(simulation.read_keys(os.path.join(self.directory, "box")).get("release_ms"))


def _holder(is_colleague: bool) -> str:
    """Return the holder of the memory: the attempt, or this process without a scheduler."""
    words = [os.environ.get(f"GPUSCHED_{word}", "") for word in ("QUEUE", "JOB_ID", "ATTEMPT")]
    return "/".join(words) if words[1] and not is_colleague else simulation.own_name()


def _state_path(directory: str, n: int) -> str:
    return os.path.join(simulation.gpu_path(directory, n), "state")


def _check_health(state: Mapping[str, str], error: str) -> None:
    if state.get("present") == "0" or state.get("fail", "ok") != "ok":
        raise CudaError(f"torch.AcceleratorError: CUDA error: {error}")


def _out_of_memory(ordinal: int, want: int, total: int, free: int) -> str:
    def gib(mib: int) -> str:
        return f"{max(0, mib) / 1024:.2f} GiB"

    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {gib(want)}. "
        f"GPU {ordinal} has a total capacity of {gib(total)} of which {gib(free)} is free."
    )


def play(job: SimulatedJob, args: argparse.Namespace) -> None:
    """Run the job from its start to its end."""
    job.take(args.mem)
    where = ", ".join(f"cuda:{i} = GPU {n}" for i, n in enumerate(job.gpus))
    print(
        f"simjob: pid {os.getpid()} " + (f"on {where}, {args.mem} MiB" if where else "takes no GPU memory"), flush=True
    )
    if not args.steps:
        job.stay(args.hold)
    progress = ProgressFile("steps")
    for step in range(1, args.steps + 1):
        job.stay(args.hold / args.steps)
        print(f"step {step}/{args.steps}  loss {2.3 / (1 + 9 * step / args.steps):.4f}", flush=True)
        progress.report(done=step, total=args.steps, message=f"step {step} of {args.steps}")
    if args.peak:
        job.take(args.peak)
        job.stay(args.hold / 4)


def run(job: SimulatedJob, args: argparse.Namespace) -> int:
    """Run the job, and give its memory back. Return the exit status."""
    try:
        play(job, args)
    except CudaError as error:
        print(f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n{error}', file=sys.stderr)
        return 1
    finally:
        job.release()
    status: int = args.exit
    return status


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    is_simulated = simulation.ENV_DIRECTORY in os.environ
    is_on_real_gpus = "GPUSCHED_JOB_ID" in os.environ and not (is_simulated or args.simulation)
    if args.mem == 0 or is_on_real_gpus:  # it plays the rest
        return run(SimulatedJob("", [], args), args)
    try:
        by_hand = None if is_simulated else os.environ.get("GPUSCHED_SIMULATE")
        spec = args.simulation or by_hand
        directory = simulation.locate(spec, os.environ)
    except ValueError as error:
        print(f"simjob: {error}; name a simulation with --simulation", file=sys.stderr)
        return 2
    if args.device is not None:
        gpus = [args.device] if args.device in simulation.gpu_numbers(directory) else []
    else:
        gpus = visible_devices(directory, os.environ)
        gpus = gpus if "CUDA_VISIBLE_DEVICES" in os.environ else gpus[:1]
    if not gpus:
        print("RuntimeError: No CUDA GPUs are available", file=sys.stderr)
        return 1
    return run(SimulatedJob(directory, gpus, args), args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpusched.commands.simjob", description=__doc__)
    add = parser.add_argument
    add("--mem", type=int, default=1000, metavar="MIB", help="memory on each GPU (0: a CPU job)")
    add("--hold", type=float, default=1.0, metavar="S", help="keep it for S seconds")
    add("--peak", type=int, default=0, metavar="MIB", help="take so much in the end, for a quarter of the time more")
    add("--exit", type=int, default=0, metavar="CODE", help="exit status")
    add("--util", type=int, default=90, metavar="PCT", help="utilisation while it runs")
    add("--steps", type=int, default=0, metavar="N", help="print N steps and report progress")
    add("--device", type=int, metavar="N", help="be another user's process on GPU N, whatever the mask is")
    add("--user", default=user_name(os.getuid()), metavar="NAME", help="owner of the process")
    add("--simulation", metavar="DIR|SPEC", help="the simulation (default: GPUSCHED_SIMULATION, which jobs get)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
