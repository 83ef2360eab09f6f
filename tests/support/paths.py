"""Where the tests and their files lie."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
CASES = TESTS / "cases"
GOLDEN = TESTS / "golden"
