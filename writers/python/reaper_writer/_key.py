"""The expiry key, without any I/O."""

from __future__ import annotations

import hashlib
import math
import re
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, Union

MAX_GENERATION = 99_999_999
MAX_SHARD = 9_999

Id = Union[str, int]

_NUMERIC = re.compile(r"__id(-?[0-9]+)__")
_KEY = re.compile(r"([0-9]{8})\.([0-9]{4})\.([0-9]{4})([0-9]{2})([0-9]{2})"
                  r"T([0-9]{2})([0-9]{2})([0-9]{2})\.([0-9]{3})Z")


class ExpiryKey(NamedTuple):
    """The parts of an expiry key."""

    generation: int
    shard: int
    expires: datetime


def id_text(id: Id) -> str:
    """Returns the text that an id is hashed by: a name, or the decimal digits of a numeric id."""
    if isinstance(id, int) and not isinstance(id, bool):
        return str(id)
    if not isinstance(id, str):
        raise TypeError(f"id: want a name or a numeric id, got {type(id).__name__}")
    numeric = _NUMERIC.fullmatch(id)  # how native mode writes a numeric id
    return numeric.group(1) if numeric else id


def utf8(text: str) -> bytes:
    """Encodes a text. A surrogate without its other half becomes U+FFFD, as in every language."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode("utf-8")


def check_int(what: str, n: int, least: int, most: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"{what}: want an integer, got {type(n).__name__}")
    if not least <= n <= most:
        raise ValueError(f"{what} {n} is not between {least} and {most}")


def fnv1a32(text: str) -> int:
    h = 2166136261
    for b in utf8(text):
        h = ((h ^ b) * 16777619) & 0xFFFFFFFF
    return h


def shard_of(id: Id, shards: int) -> int:
    """Returns the shard of an entity, from 0 to shards - 1."""
    check_int("shards", shards, 1, MAX_SHARD + 1)
    return fnv1a32(id_text(id)) % shards


def key(generation: int, shard: int, expires: datetime) -> str:
    """Returns the expiry key with these parts. The instant is rounded up to a millisecond.

    A datetime without a time zone is an error: it does not say which instant it is.
    """
    check_int("generation", generation, 0, MAX_GENERATION)
    check_int("shard", shard, 0, MAX_SHARD)
    if not isinstance(expires, datetime):
        raise TypeError(f"expires: want a datetime with a time zone, got {type(expires).__name__}")
    if expires.utcoffset() is None:
        raise ValueError("expires: the datetime has no time zone, like datetime.now(timezone.utc) has")
    try:
        t = expires.astimezone(timezone.utc)
        # Some types have nanoseconds, too: pandas.Timestamp those beyond its microseconds, and
        # DatetimeWithNanoseconds of Google's clients all of the second, or 0 if it is the result
        # of a sum. The last three digits are the same.
        nanosecond = t.microsecond * 1000 + getattr(expires, "nanosecond", 0) % 1000
        t = t.replace(microsecond=0) + timedelta(milliseconds=-(-nanosecond // 1_000_000))
    except OverflowError:
        raise ValueError("expires: not an instant in the years 1 to 9999") from None
    return (f"{generation:08d}.{shard:04d}.{t.year:04d}{t.month:02d}{t.day:02d}"
            f"T{t.hour:02d}{t.minute:02d}{t.second:02d}.{t.microsecond // 1000:03d}Z")


def nursery_key(id: Id, expires: datetime, shards: int = 16) -> str:
    """Returns the expiry key of an entity in generation 0, which is always right."""
    return key(0, shard_of(id, shards), expires)


def parse(text: str) -> ExpiryKey:
    """Returns the parts of an expiry key; any other text is a ValueError."""
    if not isinstance(text, str):
        raise TypeError(f"malformed expiry key: it is a {type(text).__name__}, not a str")
    m = _KEY.fullmatch(text)
    if m:
        n = [int(part) for part in m.groups()]
        try:
            return ExpiryKey(n[0], n[1], datetime(*n[2:8], n[8] * 1000, tzinfo=timezone.utc))
        except ValueError:
            pass  # the instant does not exist
    raise ValueError(f"malformed expiry key {text[:80]!r}: want 00000042.0007.20261121T000730.855Z")


def in_rollout(id: Id, salt: str, percent: float) -> bool:
    """Returns whether an entity is among the first percent (0 to 100) of all.

    Raising percent takes no entity out.
    """
    bucket = int.from_bytes(hashlib.sha256(utf8(f"{salt}\n{id_text(id)}")).digest()[:8], "big") % 10_000
    hundredths = percent * 100 + 0.5
    return bucket < (math.floor(hundredths) if math.isfinite(hundredths) else hundredths)
