"""Show the findings of a file of commands to people, with line, column and a caret. Decides nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gpusched.common.text import clean, mask_secrets

Severity = Literal["error", "warning", "hint"]

_EXCERPT_WIDTH = 100
SHOWN_PER_CODE = 5


class Finding(NamedTuple):
    """A mistake or a doubt in a file of commands. `forceable`: an error that --force turns into a warning."""

    severity: Severity
    code: str
    message: str
    hint: str = ""
    forceable: bool = False
    line: int = 0  # from 1, as an editor counts; 0: it has no place yet
    source: bytes = b""  # the physical line, unchanged
    at: int = 0  # byte offset into it; into the text that was judged, before it has a place

    def placed(self, line: int, source: bytes = b"", at: int = 0, *, force: bool = False) -> Finding:
        """Return it with its place: `at` is a byte offset into `source`, the physical line."""
        severity: Severity = "warning" if force and self.forceable else self.severity
        return self._replace(severity=severity, line=line, source=source, at=at)

    @property
    def column(self) -> int:
        """The column in characters, from 1."""
        return len(self.source[: self.at].decode("utf-8", "replace")) + 1

    def excerpt(self) -> tuple[str, str]:
        """Return the line, fit to show, and a line with a caret below its column; both empty without a source."""
        if not self.source:
            return "", ""
        text, before = _printable(self.source), _printable(self.source[: self.at])
        while not text.startswith(before):  # the column is inside a masked secret
            before = before[:-1]
        if len(text) > _EXCERPT_WIDTH:
            start = max(0, min(len(before) - _EXCERPT_WIDTH // 2, len(text) - _EXCERPT_WIDTH))
            lead, end = "…" if start else "", start + _EXCERPT_WIDTH
            text, before = f"{lead}{text[start:end]}…", f"{lead}{before[start:]}"
        return text, " " * sum(map(_width, before)) + "^"

    def render(self, file: str = "", *, with_hint: bool = True) -> str:
        """Return the finding in a few lines, in the form that compilers use."""
        location = f"{file}:{self.line}" if file else f"line {self.line}"
        if self.source:
            location += f":{self.column}" if file else f", column {self.column}"
        hint = [f"  {self.hint}"] if self.hint and with_hint else []
        excerpt = [f"    {text}" for text in self.excerpt() if text]
        return "\n".join([f"{location}: {self.severity}: {self.message}", *excerpt, *hint])


def render_findings(findings: Iterable[Finding], file: str = "", *, limit: int = SHOWN_PER_CODE) -> str:
    """Return findings grouped by code, the worst first: a few of each in full, the hint once, then line numbers."""
    groups: dict[tuple[int, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((_RANK[finding.severity], finding.code), []).append(finding)
    blocks = []
    for _, group in sorted(groups.items(), key=lambda item: (item[0][0], item[1][0].line)):
        texts = [finding.render(file, with_hint=False) for finding in group[:limit]]
        if len(group) > limit:
            lines = ", ".join(str(finding.line) for finding in group[limit : limit + 10])
            more = " …" if len(group) > limit + 10 else ""
            texts.append(f"… and {len(group) - limit} more like this: line {lines}{more}")
        if group[0].hint:
            texts.append(f"  {group[0].hint}")
        blocks.append("\n".join(texts))
    return "\n".join(blocks)


_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "hint": 2}


def _printable(line: bytes) -> str:
    return clean(mask_secrets(line.decode("utf-8", "surrogateescape")))


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
