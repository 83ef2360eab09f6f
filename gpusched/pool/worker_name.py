"""The worker that a user names, found without importing it: a dispatcher must never open a CUDA context."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import nearest
from gpusched.common.text import clean


@dataclass(frozen=True, slots=True)
class WorkerName:
    """A worker: its name for other processes, FILE.py:NAME or MODULE:NAME, and what its class says of itself."""

    text: str
    tunable: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    is_thread_safe: bool | None = None  # None: only an import would tell


def find_worker(text: str) -> WorkerName:
    """Return the worker of this name. Raises GpuschedError if the file does not define it."""
    path, colon, name = text.rpartition(":")
    if not colon:
        raise GpuschedError("names no worker", where=text, hint="FILE.py:NAME, such as captions.py:Caption")
    if not path.endswith(".py"):
        if os.path.isfile(path):
            raise GpuschedError("is no .py file", where=path, hint="FILE.py:NAME, such as captions.py:Caption")
        return WorkerName(text)
    path = os.path.abspath(os.path.expanduser(path))
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
    except OSError as error:
        raise GpuschedError(f"cannot be read: {error.strerror}", where=path) from None
    except (SyntaxError, ValueError) as error:
        raise GpuschedError(f"is no Python: {error}", where=path) from None
    named = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    imported = {alias.asname or alias.name for node in tree.body for alias in getattr(node, "names", ())}
    targets = [target for node in tree.body for target in getattr(node, "targets", ())]
    assigned = {target.id for target in targets if isinstance(target, ast.Name)}
    names = {*named, *imported, *assigned}
    if name not in names:
        close = nearest(name, named)
        hint = f"did you mean {close!r}?" if close else f"it defines {', '.join(named) or 'no class and no function'}"
        raise GpuschedError(f"defines no {clean(name)!r}", where=path, hint=hint)
    tunable = _attribute(named.get(name), "tunable")
    is_thread_safe = None if name in assigned else _is_thread_safe(named.get(name), tree, path)
    return WorkerName(f"{path}:{name}", tunable if isinstance(tunable, dict) else {}, is_thread_safe)


def _is_thread_safe(node: ast.ClassDef | ast.FunctionDef | None, tree: ast.Module, path: str) -> bool | None:
    """Return what a definition says of threads, None if that lies elsewhere. Raises GpuschedError for no worker."""
    if not isinstance(node, ast.ClassDef):
        return None if node is None or node.decorator_list else False
    bases = [ast.unparse(base) for base in node.bases]
    is_plain = not node.decorator_list and not node.keywords
    if is_plain and bases in ([], ["object"]):
        problem = f"class {node.name} does not derive from gpusched.Worker"
        raise GpuschedError(problem, where=path, hint=f"class {node.name}(gpusched.Worker):")
    is_own = is_plain and len(bases) == 1 and bases[0] in {"gpusched.Worker", *_names_of_worker(tree)}
    members = {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    members |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    if is_own and not members & {"__call__", "batch"}:
        problem, hint = f"class {node.name} has neither __call__ nor batch", "def __call__(self, item): ..."
        raise GpuschedError(problem, where=path, hint=hint)
    if "thread_safe" in members:
        says = _attribute(node, "thread_safe")
        return says if isinstance(says, bool) else None
    return False if is_own else None


def _names_of_worker(tree: ast.Module) -> set[str]:
    """Return the names by which `from gpusched import Worker` makes it known in a file."""
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "gpusched")
    return {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "Worker"}


def _attribute(node: ast.AST | None, name: str) -> Any:
    """Return an attribute of a class as far as it can be read off its text; None where it cannot."""
    for each in getattr(node, "body", ()) if isinstance(node, ast.ClassDef) else ():
        targets = [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", ())
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            try:
                return ast.literal_eval(each.value)
            except ValueError:
                return None
    return None


def name_of(worker: Any) -> WorkerName:
    """Return the name of a class or a function for other processes. Raises GpuschedError if they cannot import it."""
    module, name, tunable = worker.__module__, worker.__qualname__, getattr(worker, "tunable", {})
    is_thread_safe = bool(getattr(worker, "thread_safe", False))
    if "<" in name:
        raise GpuschedError(f"{name} is defined inside a function, where no other process finds it", hint=_MOVE)
    if module != "__main__" and "." in module:
        return WorkerName(f"{module}:{name}", tunable, is_thread_safe)
    file = getattr(sys.modules[module], "__file__", None)
    try:
        is_there = file is not None and os.path.isfile(inspect.getfile(worker))
    except (OSError, TypeError):
        is_there = False
    if not is_there or file is None:
        raise GpuschedError(f"{name} is defined in a notebook, or typed, so no other process can import it", hint=_MOVE)
    return WorkerName(f"{os.path.abspath(file)}:{name}", tunable, is_thread_safe)


_MOVE = "move it to a file, and import it from there"
