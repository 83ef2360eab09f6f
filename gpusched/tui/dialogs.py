"""The questions before something is changed: yes or no, or a value; and the list of all keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """A screen over the others that ends with an answer."""

    def answer(self, answer: T | None) -> None:
        """End with this answer, unless a key before has ended it: several may arrive at once."""
        if self.is_current:
            self.dismiss(answer)


class Confirmation(Dialog[bool]):
    """A question that only y answers with yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q,enter", "answer(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(self._text))
            yield Static("[@click=screen.answer(True)][b]y[/b]: yes[/]   [@click=screen.answer(False)][b]n[/b]: no[/]")

    def action_answer(self, answer: bool) -> None:
        self.answer(answer)


class Entry(Dialog[str | None]):
    """A line to type a value into; None if it is left by Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it")]

    def __init__(self, text: str, value: str = "") -> None:
        super().__init__()
        self._text, self._value = text, value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(self._text))
            yield Input(self._value)
            yield Static("[b]Enter[/b]: change it   [b]Esc[/b]: leave it as it is")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.answer(event.value)

    def action_leave(self) -> None:
        self.answer(None)


class Keys(Dialog[None]):
    """All keys with what they do; any of them leaves the list."""

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text("\n".join(f"{key:>10}  {text}" for key, text in self._rows)))

    def on_key(self) -> None:
        self.answer(None)

    def on_click(self) -> None:
        self.answer(None)
