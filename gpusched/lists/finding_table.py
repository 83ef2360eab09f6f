"""The findings that a list of jobs can have, as one table: severity, message and hint of each. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gpusched.common.quantities import nearest
from gpusched.lists.findings import Finding, Severity


class Rule(NamedTuple):
    """A row of the table. `message` and `hint` are templates of `str.format`; only errors are `forceable`."""

    severity: Severity
    message: str
    hint: str = ""
    forceable: bool = False  # --force turns the error into a warning


class Fault(NamedTuple):
    """A finding before it has a line; `at` is a byte offset into the text that was judged."""

    code: str
    severity: Severity
    at: int
    message: str
    hint: str = ""
    forceable: bool = False


def fault(name: str, at: int = 0, /, **values: Any) -> Fault:
    """Return the fault of the row `name`, with the values in its texts."""
    rule = RULES[name]
    code = name.partition(".")[0]
    message, hint = rule.message.format(**values), rule.hint.format(**values)
    return Fault(code, rule.severity, at, message, hint, rule.forceable)


def place_fault(fault: Fault, line: int, source: bytes = b"", at: int = 0, *, force: bool = False) -> Finding:
    """Return the finding of a fault: `at` is a byte offset into `source`, the physical line."""
    return Finding(
        severity="warning" if force and fault.forceable else fault.severity,
        code=fault.code,
        line=line,
        message=fault.message,
        hint=fault.hint,
        forceable=fault.forceable,
        source=source,
        at=at,
    )


def suggest(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?" for the nearest of `words`, or nothing if none is near."""
    match = nearest(word, words)
    return f"; did you mean {match}?" if match else ""


_ONE_LINE = "a command has one line: join lines by a backslash at the end, or put them into a script"
_OTHER_GPU = "so the job would not use the GPU that is checked and claimed for it"
_OWN_GPU = "leave it out, since gpusched sets it; --strip-gpu-env removes it, --force runs the line as it is"
_BLOCK_FORM = "write [key=value key=value] command; quote values as in the shell; lists have commas and no blanks"
_TABLE = "is this a table of parameters?"
_TABLE_HINT = "begin each line with the program that takes them; --force runs the lines as they are"
_QUOTE = "a value that begins with {{ or [, or that contains ': ' or ' #', needs quotes: '…'"

# The part of a name before the point is the code of the finding.
RULES = {
    # ---- a command line
    "open-quote": Rule("error", "this {opener} is not closed on its line", _ONE_LINE),
    "here-document": Rule(
        "error",
        "a here-document needs lines of its own, and a command has one line",
        "put the text into a file, or use a here-string: <<< 'text'",
    ),
    "nul-byte": Rule("error", "a NUL byte: no command can contain one", "save the file as UTF-8 text"),
    "no-command": Rule("error", "the command is empty"),
    "backslash-blank": Rule(
        "error",
        "a blank follows the backslash, so the shell does not join the next line",
        "remove the blank; --force runs each line by itself, as the shell would",
        forceable=True,
    ),
    "option-line": Rule(
        "error",
        "the line begins with an option, not with a program",
        "if it continues the line above, end that line with a backslash",
        forceable=True,
    ),
    "unfinished": Rule(
        "error", "the command is not complete: its {word} has no counterpart on this line", _ONE_LINE, forceable=True
    ),
    "own-devices.unset": Rule("error", f"it unsets a variable of gpusched, {_OTHER_GPU}", _OWN_GPU, forceable=True),
    "own-devices.set": Rule("error", f"it sets {{variable}} itself, {_OTHER_GPU}", _OWN_GPU, forceable=True),
    "cleared-environment": Rule(
        "error",
        f"it empties the environment, {_OTHER_GPU}",
        "keep the variables: env -i CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER=PCI_BUS_ID …",
        forceable=True,
    ),
    "setup-line": Rule(
        "error",
        "the line only sets something up, and each line is run by itself: it does nothing for the lines below",
        "put it before each command with &&, or into a file for --setup FILE; --force skips such lines",
        forceable=True,
    ),
    "no-program": Rule("error", "the command does not start with a program ({word})", forceable=True),
    "parameter-table": Rule(
        "error", f"the line does not start with a program ({{words}}); {_TABLE}", _TABLE_HINT, forceable=True
    ),
    "parameter-table.lines": Rule(
        "error", f"none of {{lines}} starts with a program ({{words}}); {_TABLE}", _TABLE_HINT, forceable=True
    ),
    "cpu-job": Rule(
        "warning",
        "{variable} hides all GPUs, but one is claimed for the job",
        "if this is a CPU job, begin the line with [gpus=0], or run a list of such lines with --gpus-per-job 0",
    ),
    "background": Rule(
        "warning",
        "a process stays in the background: the shell returns while it still runs",
        "leave out nohup and &, or end the line with wait; the GPU stays claimed until the job has no process left",
    ),
    "backslash-in-comment": Rule(
        "warning",
        "a backslash in a comment joins nothing: the next line is a command of its own",
        "move the comment to a line above the command",
    ),
    # ---- a file of commands
    "script": Rule(
        "error",
        "this is a {language} script, not a file of commands",
        "write a file with lines like: {language} FILE",
        forceable=True,
    ),
    "shebang": Rule(
        "hint", "this line chooses no shell: each line below is run by itself", "use --shell to choose one"
    ),
    "backslash-at-end": Rule(
        "warning", "the last line ends in a backslash, and nothing follows it", "remove the backslash"
    ),
    "backslash-at-end.partial": Rule(
        "error",
        "the last line ends in a backslash, and nothing follows it",
        "the file may be incomplete; if it is not, remove the backslash",
    ),
    "duplicate": Rule("hint", "line {line} repeats line {first}"),
    "duplicate.sweep": Rule("hint", "line {line} makes the same job more than once"),
    "near-directive": Rule(
        "warning", "this is a comment and sets nothing", "write a directive as #gpusched: gpus=2 mem=18G"
    ),
    # ---- attributes
    "attribute-syntax.open": Rule("error", "this [ opens attributes and is never closed", _BLOCK_FORM),
    "attribute-syntax.word": Rule("error", "{word!r} is no attribute of the form key=value", _BLOCK_FORM),
    "attribute-syntax.quote": Rule("error", "this quote is not closed", _BLOCK_FORM),
    "attribute-syntax.backslash": Rule("error", "nothing follows this backslash", _BLOCK_FORM),
    "attribute-expansion": Rule(
        "error",
        "nothing is expanded in attributes, but the shell would expand this",
        "write the value itself, or set it in the command; single quotes keep the characters as they are",
    ),
    "attribute-expansion.yaml": Rule(
        "warning",
        "nothing is expanded in {key}: the characters are taken as they are",
        "use $X in the command, where the shell expands it",
    ),
    "attribute-end.blank": Rule("error", "a blank must follow the attributes"),
    "attribute-end.second": Rule("error", "a second block of attributes: put all into the first"),
    "attribute-end.map": Rule(
        "error",
        "the attributes of this job are keys of their own, not a block before the command",
        "write gpus: 2 and mem: 18G beside command:",
    ),
    "attribute-alone": Rule(
        "error", "no command follows the attributes", "for all lines below, write #gpusched: key=value"
    ),
    "attribute-key": Rule("error", "unknown attribute {key!r}{suggestion}", "the keys: {keys}"),
    "attribute-key.variable": Rule("error", "{key!r} is no name of a variable: letters, digits and _"),
    "attribute-own": Rule("error", "gpusched sets {key} itself: leave it out (gpus=0 makes a job without a GPU)"),
    "attribute-twice": Rule("error", "{key} is stated twice"),
    "attribute-twice.list": Rule("error", "{key} is stated twice: write {key}=a,b"),
    "attribute-name": Rule(
        "error", "a name is for one job, and a directive is for all the lines below", "use tag=… for many jobs"
    ),
    "attribute-value": Rule("error", "{key} is {value!r}, but must be {form}"),
    "attribute-value.comma": Rule(
        "error", "{key} is {value!r}, but must be {form}; separate attributes by blanks, not by commas"
    ),
    "attribute-value.name": Rule("error", "the name is empty"),
    "attribute-bare": Rule("warning", "{key}= removes a default, but there is none", "leave it out"),
    "attribute-bare.variable": Rule(
        "warning", "{key}= removes a default, but there is none", "{key}='' sets it to nothing"
    ),
    "attribute-mem": Rule(
        "warning",
        "mem {text} is {mib:g} MiB, which is less than a CUDA context alone takes",
        "a number without a unit is in MiB; 18G is 18 GiB",
    ),
    "name-taken": Rule("error", "line {owner} has the name {name} already", "a name is for one job; use tag for many"),
    "name-taken.sweep": Rule(
        "error", "several jobs of line {owner} have the name {name}", "put its parameters into the name: {form}"
    ),
    # ---- parameters
    "placeholder": Rule("error", "{error}", "pass it in a variable: env: {{X: '{{name}}'}}, and $X"),
    "sweep.twice": Rule("error", "the parameter {name} is set twice"),
    "sweep.size": Rule("error", "this makes {jobs:,} jobs, and at most {most:,} are allowed"),
    "sweep.empty": Rule("error", "no combination is left: all are excluded"),
    "sweep.zip": Rule("error", "the lists of zip differ in length: {lengths}"),
    "sweep.csv": Rule("error", "cannot be read: {error}", "the path is relative to this file"),
    "sweep.table": Rule("error", "this table cannot be used: {error}"),
    "sweep.repeat": Rule("error", "repeat is {value!r}, but must be a whole number, at least 1"),
    "sweep.span": Rule("error", "{error}"),
    "sweep.values": Rule("error", "{name} has no values", "write a list, [1e-3, 1e-4], or a range, 0..4"),
    "unused-parameter": Rule("warning", "the command does not use {names}: its {jobs} jobs are all the same"),
    "near-parameter": Rule("warning", "{{{word}}} is no parameter and stays as it is; did you mean {{{meant}}}?"),
    "no-parameter": Rule(
        "warning", "{{{word}}} stays as it is: there is no such parameter", "if it is meant as one, add -p {word}=…"
    ),
    "exclude": Rule("warning", "this excludes nothing: no combination has these values", "values are compared as text"),
    # ---- a YAML file
    "yaml.encoding": Rule("error", "this file is not UTF-8"),
    "yaml.depth": Rule("error", "this is nested too deeply"),
    "yaml": Rule("error", "this is not YAML: {problem}", _QUOTE),
    "shape.text": Rule("error", "{subject} must be text, not a {kind}", _QUOTE),
    "shape.key": Rule("error", "a key of {subject} must be text", _QUOTE),
    "shape.list": Rule("error", "{subject} must be a list, each item behind a dash"),
    "shape.map": Rule("error", "{subject} must be a map, with lines such as 'key: value'"),
    "shape.no-jobs": Rule("error", "this file has no jobs:", "add jobs: with a list of commands"),
    "shape.no-command": Rule("error", "this job has no command:"),
    "shape.two-commands": Rule("error", "a job has command: or run:, not both"),
    "key": Rule("error", "unknown key {key!r}{suggestion}", "the keys: {keys}"),
    "key.job": Rule("error", "unknown key {key!r}{suggestion}", "it belongs to a job: a list item below jobs:"),
    "key.one-job": Rule("error", "{key} is for one job, and defaults are for all"),
    "key.parameter": Rule("error", "{key} is no parameter of this sweep{suggestion}", "the parameters: {names}"),
    "key-twice": Rule("error", "{key} is set here already"),
    "key-twice.map": Rule("error", "{key} is in line {line} of this map already"),
    # ---- dependencies
    "unknown-job": Rule(
        "error",
        "no job has the name or the tag {ref}{suggestion}",
        "after= takes the names, tags and ids of jobs of the same queue",
    ),
    "circle": Rule("error", "these jobs wait for each other: {jobs}", "remove one of these dependencies"),
    "circle.self": Rule("error", "the job waits for itself: {ref} is its own", "remove this dependency"),
}
