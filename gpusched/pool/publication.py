"""The formats of results and the places where they go, as values: for the pool, and for the stage that does it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpusched.common.errors import GpuschedError
from gpusched.common.libraries import refuse_missing
from gpusched.common.quantities import nearest

JSON_LINES = "jsonl"  # what every other format is made from


class ResultFormat(NamedTuple):
    """A value of --sink: the suffix of the files, and the libraries that write them."""

    suffix: str
    libraries: tuple[str, ...] = ()


FORMATS = {
    "jsonl": ResultFormat(JSON_LINES),
    "parquet": ResultFormat("parquet", ("pyarrow",)),
    "pt": ResultFormat("pt", ("torch",)),
    "files": ResultFormat(JSON_LINES),  # results are paths of files that the worker has written
}


@dataclass(frozen=True, slots=True)
class Publication:
    """The order to the stage `commands/publish`: the parts in `directory` in a format, and copies of them at `url`."""

    directory: str
    sink: str
    output: str  # of the pool; paths in results are relative to it
    url: str = ""
    project: str = ""  # of Weights & Biases
    name: str = ""  # of the run there

    @property
    def suffix(self) -> str:
        return FORMATS[self.sink].suffix

    @property
    def is_needed(self) -> bool:
        """True if more is wanted than JSON lines on this disk."""
        return bool(self.suffix != JSON_LINES or self.url or self.project)


def paths_of(result: Any) -> Iterator[str]:
    """Yield the paths in a result of `--sink files`: a path, or a list or a dict of them. Raises ValueError."""
    if isinstance(result, str):
        yield result
    elif isinstance(result, list | dict) and result:
        for each in result.values() if isinstance(result, dict) else result:
            yield from paths_of(each)
    else:
        raise ValueError(f"a path, or several, must be returned with --sink files, not {result!r:.80}")


def check_files(result: Any, output: str) -> None:
    """Raise ValueError or FileNotFoundError unless a result names files that are there, below `output`."""
    for path in paths_of(result):
        full = os.path.join(output, path)
        if not os.path.realpath(full).startswith(f"{os.path.realpath(output)}/"):
            raise ValueError(f"{path} lies outside of the output directory {output}")
        if not os.path.isfile(full):
            raise FileNotFoundError(f"{path} was returned, and there is no such file in {output}")


def check_libraries(sink: str, url: str, project: str) -> None:
    """Raise GpuschedError if a library is missing, or if no library knows the kind of URL."""
    refuse_missing(f"--sink {sink}", FORMATS[sink].libraries)
    refuse_missing("--wandb", ["wandb"] if project else [])
    if url:
        refuse_missing("--upload", ["fsspec"])
        from fsspec.registry import known_implementations

        scheme = url.partition("://")[0]
        if scheme not in known_implementations:
            close = nearest(scheme, known_implementations)
            hint = f"did you mean {close}://?" if close else "such as s3://bucket/captions or file:///mnt/captions"
            raise GpuschedError("is no kind of place that fsspec knows", where=f"--upload {scheme}://", hint=hint)
        module = known_implementations[scheme]["class"].partition(".")[0]
        refuse_missing(f"--upload {scheme}://", [module])
