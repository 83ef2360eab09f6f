"""Text fit to show: secrets masked, escapes visible, the last line of a log, names of logs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.common.text import STEM_BYTES, clean, last_line, log_stem, mask_secrets
from tests.support.paths import TESTS

CASES = TESTS / "cases" / "files"


# ---- secrets ---------------------------------------------------------------------------------------


def test_secrets_in_commands() -> None:
    lines = (CASES / "54-secrets.txt").read_text().splitlines()
    assert [mask_secrets(line) for line in lines] == [
        "HF_TOKEN=*** python3 train.py --ix 1",
        "WANDB_API_KEY=*** python3 train.py --ix 2",
        "python3 train.py --hub_token *** --report_to wandb",
        "python3 train.py --wandb-key=***",
        "wandb login *** && python3 train.py --ix 5",
        lines[5],
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("DB_PASSWORD='a b'c x", "DB_PASSWORD=*** x"),
        ('MY_SECRET="a \\" b" x', "MY_SECRET=*** x"),
        ('MY_SECRET="cut off', "MY_SECRET=***"),
        ("export TOKEN=abc; x", "export TOKEN=***; x"),
        ("--hubToken abc", "--hubToken ***"),
        ("--flag --password abc", "--flag --password ***"),
        ("--api-key 'a b' --x", "--api-key *** --x"),
        ("model.api_key=abc", "model.api_key=***"),
        ('{"api_key": "a b", "n": 1}', '{"api_key": ***, "n": 1}'),
        ("{'hub_token': 'ab'}", "{'hub_token': ***}"),
        ('bash -c "HF_TOKEN=abc x" "y"', 'bash -c "HF_TOKEN=*** x" "y"'),
        ("bash -c \"HF_TOKEN='a b' x\"", 'bash -c "HF_TOKEN=*** x"'),
        ("docker run -e HF_TOKEN=abc i", "docker run -e HF_TOKEN=*** i"),
        ("https://me:pw@host/x", "https://me:***@host/x"),
        ("https://0123456789abcdef0123@host/x", "https://***@host/x"),
        ("http://h/?api_key=ab&n=1", "http://h/?api_key=***&n=1"),
        ("-H 'Authorization: Bearer abc' x", "-H 'Authorization: Bearer ***' x"),
        ('-H "X-Api-Key: abc" x', '-H "X-Api-Key: ***" x'),
        ("curl -s -u me:pw h", "curl -s -u me:*** h"),
        ("wandb login --relogin --host https://h abc", "wandb login --relogin --host https://h ***"),
        ("echo hf_AbCdEfGhIjKlMnOpQrStUv", "echo ***"),
        ("x sk-proj-0123456789abcdefghij y", "x *** y"),
        ("x AKIAABCDEFGHIJKLMNOP y", "x *** y"),
        ("x ghp_0123456789abcdefghij0123 y", "x *** y"),
        ("AWS_SECRET_ACCESS_KEY=a/b+c x", "AWS_SECRET_ACCESS_KEY=*** x"),
    ],
)
def test_what_is_masked(text: str, shown: str) -> None:
    assert mask_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "python3 train.py --tokenizer acme/tok --max_tokens 512 --key-bindings vim",
        "--eos_token '</s>' --pad-token x --sort_key a --text-key content",
        'HF_TOKEN=$HF_TOKEN x --token ${T} --hub_token "$H"',
        "TOKEN=$(cat ~/.token) x",
        "PWD=/home/me OLDPWD=/x y",
        "KeyError: 'x'; missing key: layer.0.weight",
        "unexpected token: ]",
        "--key 3 --token --other",
        "hf_transfer hf_home hf_hub_download",
        "https://host:8080/x@y http://h/a:b",
        "risk-adjusted-return-of-many-words-here",
        "monkey=1 tokens=5",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert mask_secrets(text) == text


SECRET = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=20, max_size=40)
FORMS = ["X_TOKEN={}", "--hub_token {}", "--api-key={}", "A_PASSWORD='{}'", '"A_SECRET={}"', "\"X_KEY='a {}' y\""]
FORMS += ['"X_KEY=\\"a {}\\" y"', "'X_KEY=\"{} b\" y'", '{{"api_key": "{}"}}', "http://a:{}@h", "wandb login {}"]
AROUND = st.text("ab =-_\"' &;|/:{},\\", max_size=10)


@settings(max_examples=60)
@given(SECRET, AROUND, AROUND, st.sampled_from(FORMS))
def test_a_planted_secret_is_never_shown(secret: str, before: str, after: str, form: str) -> None:
    text = f"{before} {form.format(secret)} {after}"
    assert secret not in mask_secrets(text)


@settings(max_examples=60)
@given(st.text("abT1 =:-$(){}*&;,@/\"'\\\n", max_size=40))
def test_masking_twice_is_masking_once(text: str) -> None:
    once = mask_secrets(f"A_TOKEN={text} --key {text}")
    assert mask_secrets(once) == once


# ---- clean -----------------------------------------------------------------------------------------


def test_what_a_terminal_would_obey_is_made_visible() -> None:
    assert clean("a\x1b[31mb\x07\x9b\tc\n") == "a\\x1b[31mb\\x07\\x9b c\\x0a"
    assert clean("a\u202eb\u2066\u200b\ufeff") == "a\\u202eb\\u2066\\u200b\\ufeff"
    assert clean(b"a\xff".decode("utf-8", "surrogateescape")) == "a\\xff"
    assert clean("\ud800") == "\\ud800"
    assert clean("größe 둘 ✅") == "größe 둘 ✅"


@given(st.text("ab\t\n\x00\x1b\x7f\x9b\u061c\u200b\u202e\u2069\ufeff\ud800\udc80\udfff둘é", max_size=20))
def test_clean_text_is_printable_and_stays_so(text: str) -> None:
    shown = clean(text)
    assert clean(shown) == shown
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000 for char in shown)


# ---- the last line of a log ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"a\nb\n\n", "b"),
        (b"a\nb", "b"),
        (b"a\r\nb\r\n", "b"),
        (b" 10%|#   |\r 50%|##  |\r", "50%|##  |"),
        (b"longer\rab\x1b[K", "ab"),
        (b"longer\rab\r\x1b[K", "ab"),
        (b"longer\x1b[2K\rab", "ab"),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(B", "red x"),
        (b"a\x1b[2", "a"),
        ("\udc80ölf둘".encode("utf-8", "surrogateescape"), "\ufffdölf둘"),
        (b"a\n\x1b[0m\n", "a"),
        (b"tab\tbell\x07", "tab bell"),
        (b"login with HF_TOKEN=abc", "login with HF_TOKEN=***"),
    ],
)
def test_last_line(tail: bytes, shown: str) -> None:
    assert last_line(tail) == shown


@given(st.binary(max_size=60))
def test_a_last_line_never_breaks_the_terminal(tail: bytes) -> None:
    assert "\x1b" not in last_line(tail)
    assert "\n" not in last_line(tail)


# ---- names of logs ---------------------------------------------------------------------------------


def test_log_names_are_readable() -> None:
    assert log_stem(b"python3 train.py --ix 1 --lr=0.1") == "train.py-ix-1-lr=0.1"
    assert log_stem(b"A=1 /usr/bin/python3 -m acme.train > ../x.log") == "m-acme.train-x.log"
    assert log_stem(b"python3") == "python3"
    assert log_stem("둘 '*?' ...".encode()) == "job"


def test_log_names_of_odd_commands() -> None:
    stems = [log_stem(line) for line in (CASES / "52-longnames.txt").read_bytes().splitlines()]
    assert stems[2:] == ["train.py-tag", "train.py-out-x-tag-b", "train.py-tag-a-b"]
    assert all(len(stem) <= STEM_BYTES for stem in stems)


@given(st.binary(max_size=120), st.integers(1, 120))
def test_log_names_are_safe(command: bytes, limit: int) -> None:
    stem = log_stem(command, limit)
    assert stem.isascii()
    assert 1 <= len(stem) <= max(limit, len("job"))
    assert not set(stem) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=+")
    assert stem[0] not in ".-"


@given(SECRET)
def test_log_names_hold_no_secrets(secret: str) -> None:
    assert secret[:12] not in log_stem(f"X_TOKEN={secret} python3 train.py --api-key {secret}".encode())
