"""The best packing of jobs onto boards that can be found offline, and what no packing can beat. Runs nothing.

A piece is a job whose length is known beforehand, which no scheduler knows: (memory, seconds). A board holds pieces
side by side as far as its memory and a number of places go.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    mem: float
    seconds: float

    @property
    def area(self) -> float:
        return self.mem * self.seconds


def bound(pieces: Sequence[Piece], boards: Sequence[float], places: int) -> float:
    """What no packing can beat: the longest piece; memory times seconds, and places times seconds, over what there is.

    Each also for the pieces above a size alone, over the boards that can hold these.
    """
    most = max(piece.seconds for piece in pieces)
    for least in {piece.mem for piece in pieces}:
        large = [piece for piece in pieces if piece.mem >= least]
        able = [board for board in boards if board >= least]
        most = max(most, sum(piece.area for piece in large) / sum(able))
        seats = sum(min(places, int(board / least)) for board in able)
        most = max(most, sum(piece.seconds for piece in large) / seats)
    return most


def pack(pieces: Sequence[Piece], boards: Sequence[float], places: int, fit: Callable[[float], float]) -> float:
    """When all have ended, if each moment the first pieces of this order that fit are started, by best `fit` of what
    a board would have left."""
    left = list(boards)
    seats = [places] * len(boards)
    running: list[tuple[float, int, int]] = []  # end, piece, board
    waiting = list(enumerate(pieces))
    now = 0.0
    while waiting or running:
        for number, piece in list(waiting):
            able = [n for n, room in enumerate(left) if room >= piece.mem and seats[n]]
            if able:
                board = min(able, key=lambda n: fit(left[n] - piece.mem))
                left[board] -= piece.mem
                seats[board] -= 1
                heapq.heappush(running, (now + piece.seconds, number, board))
                waiting.remove((number, piece))
        if not running:
            raise ValueError("a piece fits no board")
        now, number, board = heapq.heappop(running)
        left[board] += pieces[number].mem
        seats[board] += 1
    return now


def best(pieces: Sequence[Piece], boards: Sequence[float], places: int, tries: int = 300) -> float:
    """The shortest of many packings: by length, by area, by memory, and by slightly shuffled orders of these."""
    orders: list[Callable[[Piece], float]] = [lambda p: -p.seconds, lambda p: -p.area, lambda p: -p.mem]
    fits: list[Callable[[float], float]] = [lambda room: room, lambda room: -room]
    found = [pack(sorted(pieces, key=order), boards, places, fit) for order, fit in itertools.product(orders, fits)]
    draw = random.Random(1)
    for _ in range(tries):
        order, fit, spread = draw.choice(orders), draw.choice(fits), draw.uniform(0, 0.6)
        noisy = sorted(pieces, key=lambda p: order(p) * (1 + draw.uniform(-spread, spread)))
        found.append(pack(noisy, boards, places, fit))
    return min(found)
