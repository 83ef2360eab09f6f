"""The digest for names and identities, without OpenSSL, which hashlib loads and which takes 2 ms to load."""

from __future__ import annotations

try:
    from _blake2 import blake2b as blake2b
except ImportError:  # another Python than CPython
    from hashlib import blake2b as blake2b
