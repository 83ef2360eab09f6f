"""The findings that a list of jobs can have, as one table: severity, message and hint of each. Judges nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

from gpusched.common.quantities import nearest
from gpusched.lists.findings import Finding

_ROW = r"^(error|forceable|warning|hint) (\S+): (.*)(?:\n    (.*))?$"


@functools.cache
def rules() -> dict[str, Finding]:
    """Return the rows of the table, by name; read with the first fault, since most lists have none."""
    rows = re.findall(_ROW, _TABLE, re.MULTILINE)
    return {
        name: Finding(
            "error" if kind == "forceable" else kind, name.partition(".")[0], message, hint, kind == "forceable"
        )
        for kind, name, message, hint in rows
    }


def fault(name: str, at: int = 0, /, **values: Any) -> Finding:
    """Return the finding of the row `name`, with the values in its texts; `at` is an offset into what was judged."""
    rule = rules()[name]
    return rule._replace(at=at, message=rule.message.format(**values), hint=rule.hint.format(**values))


def suggest(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?" for the nearest of `words`, or nothing if none is near."""
    match = nearest(word, words)
    return f"; did you mean {match}?" if match else ""


# A row: the severity ("forceable" is an error that --force turns into a warning), the name, the message; below it the
# hint, if there is one. The code of a finding is the part of the name before the point.
_TABLE = """
error open-quote: this quote is not closed on its line
    a command has one line: join lines by a backslash at the end, or put them into a script
error encoding: this is {problem}
error nul-byte: a NUL byte: no command can contain one
    save the file as UTF-8 text
error no-command: the command is empty
    attributes for all lines below are a line of their own: #gpusched: key=value
warning no-program: there is no program {program} on PATH
    the job fails unless --setup or an earlier job provides it
forceable backslash-blank: a space follows the backslash, so the shell does not join the next line
    remove the space; --force runs each line by itself, as the shell would
forceable option-line: the line begins with an option, not with a program
    if it continues the line above, end that line with a backslash
warning look-alike: this is {name}
    programs take it as it is; text that is meant to have it stands in quotes
forceable look-alike.option: an option begins with {name}
    write it anew by hand; --force runs the line as it is
forceable unfinished: this is not a complete command
    a command has one line: join lines by a backslash at the end, or put them into a script; here-strings: <<< 'text'
forceable own-devices: it sets or unsets {variable} itself, so the job would not use the GPU claimed for it
    leave it out, since gpusched sets it; --strip-gpu-env removes it, --force runs the line as it is
forceable cleared-environment: it clears CUDA_VISIBLE_DEVICES, so the job may use a GPU that was not claimed for it
    keep the variable: env -i CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES" …
hint stripped: its own choice of GPUs is removed by --strip-gpu-env
forceable setup-line: each line runs in a shell of its own, so what this line sets is lost
    put it before each command with &&, or into a file for --setup FILE; --force skips such lines
forceable parameter-table: this does not start with a program ({word}); is it a table of parameters?
    begin each line with the program that takes them; --force runs the lines as they are
warning cpu-job: {variable} hides all GPUs, but one is claimed for the job
    if this is a CPU job, begin the line with [gpus=0], or run a list of such lines with --gpus-per-job 0
warning background: a process stays in the background: the shell returns while it still runs
    leave out nohup and &, or end the line with wait; the GPU stays claimed until the job has no process left
warning remote: this runs on another machine, where nothing is claimed for it
    start gpusched there: ssh HOST gpusched run LIST
warning all-gpus: the container sees GPUs that are not claimed for the job
    pass on what the job got: --gpus '"device='$CUDA_VISIBLE_DEVICES'"'
warning endless: this never ends, so the job keeps its GPU until it is stopped
    leave it out: logs are kept anyway; --time-limit or timeout ends it
forceable script: this is a {language} script, not a file of commands
    write a file with lines like: {language} FILE
hint shebang: the #! line is ignored: each line below runs by itself
    use --shell to choose one
warning backslash-at-end: the last line ends in a backslash, and nothing follows it
    remove the backslash
error backslash-at-end.partial: the last line ends in a backslash, and nothing follows it
    the file may be incomplete; if it is not, remove the backslash
hint duplicate: line {line} repeats line {first}
warning near-directive: this is a comment and sets nothing
    write a directive as #gpusched: gpus=2 mem=18G
warning slurm-directive: this is a comment here and sets nothing; only Slurm reads it
    for the lines below: #gpusched: gpus=1 mem=18G time=2:00:00 (or --gpus --mem --time); each line is a job of its own
warning slurm: this asks Slurm for GPUs, which does not know what is claimed for the job
    leave srun and its options out, and say what the job needs before it: [gpus=1 mem=18G time=2:00:00]
error attribute-syntax.open: this [ opens attributes and is never closed
    write [key=value key=value] command; quote values as in the shell; lists have commas and no spaces
error attribute-syntax: {word!r} is not of the form key=value, or the shell would expand it
    quote values as in the shell; nothing is expanded, so $, a backquote and a leading ~ need single quotes
error attribute-end.map: the attributes of this job are keys of their own, not a block before the command
    write gpus: 2 and mem: 18G beside command:
error attribute-key: unknown attribute {key!r}{suggestion}
    the keys: {keys}
error attribute-key.variable: {key!r} is no name of a variable: letters, digits and _
error attribute-own: gpusched sets {key} itself: leave it out (gpus=0 makes a job without a GPU)
error attribute-twice: {key} is stated twice
    a list has commas: tag=a,b
error attribute-name: a name is for one job, and a directive is for all the lines below
    use tag=… for many jobs
error attribute-value: {key} is {value!r}, but must be {form}
error attribute-value.comma: {key} is {value!r}, but must be {form}; separate attributes by spaces, not by commas
error attribute-value.look-alike: {key} is {value!r}, but must be {form}; it has {look_alike}
error attribute-syntax.look-alike: {word!r} is not of the form key=value: this is {look_alike}
warning attribute-mem: mem {text} is {mib:g} MiB, which is less than a CUDA context alone takes
    a number without a unit is in MiB; 18G is 18 GiB
warning untagged: mem=auto without a tag: {jobs} alone
    give jobs that need the same memory a tag, as in [tag=train mem=auto]: they share GPUs once one has shown it
error name-taken: line {owner} has the name {name} already
    a name is for one job: put the parameters of a sweep into it, or use tag
error placeholder: {error}
    pass it in a variable: env: {{X: '{{name}}'}}, and $X
error sweep.twice: the parameter {name} is set twice
error sweep.size: this makes {jobs:,} jobs, and at most {most:,} are allowed
error sweep.empty: no combination is left: all are excluded
error sweep.zip: the lists of zip differ in length: {lengths}
error sweep.csv: the table {path} cannot be read: {error}
    its path is relative to this YAML file, and its first line names the columns
warning sweep.row: {path}: {note}
hint single: {name} has one value, {value}
    if it stands for several, write -p {name}={form}
error sweep.range: {error}
error sweep.repeat: repeat is {value!r}, but must be a whole number, at least 1
error sweep.values: {name} has no values
    write a list, [1e-3, 1e-4], or a range, 0..4
forceable unused-parameter: the command does not use {names}, so the values make no difference
    write {names} where the values belong, or leave the parameter out
forceable unfilled: no parameter fills {{{word}}}, so it would be run as it stands{suggestion}
    -p {word}=VALUES fills it; --force leaves it as it is
warning near-parameter: no parameter is called {{{word}}}, so the text stays as it is{suggestion}
warning exclude: this excludes nothing: no combination has these values
    values are compared as text
error encoding.yaml: {problem}
error yaml: {problem}
    a value that begins with {{ or [, or that contains ': ' or ' #', needs quotes: '…'
error shape.text: {subject} must be text, not a {kind}
    a value that begins with {{ or [, or that contains ': ' or ' #', needs quotes: '…'
error shape.list: {subject} must be a list, each item behind a dash
error shape.map: {subject} must be a map, with lines such as 'key: value'
error shape.no-jobs: this file has no jobs:
    add jobs: with a list of commands
error shape.command: a job has either command: or run:
error key: unknown key {key!r}{suggestion}
    the keys: {keys}
error key.one-job: {key} is for one job, and defaults are for all
error key.parameter: {key} is no parameter of this sweep{suggestion}
    the parameters: {keys}
error key-twice: {key} is in line {line} of this map already
error unknown-job: no job has the name or the tag {ref}{suggestion}
    after= takes the names, tags and ids of jobs of the same queue
error circle: these jobs wait for each other: {jobs}
    remove one of these dependencies
"""
