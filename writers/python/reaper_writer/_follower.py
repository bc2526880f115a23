"""Follows the generations of a target, by reads of its record in the background."""

from __future__ import annotations

import os
import re
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ._key import MAX_GENERATION, MAX_SHARD, Id, check_int, fnv1a32, id_text, key

NEWEST_SCHEMA = 2  # what writers read means the same in 1 and 2
MILLI = 1_000_000  # nanoseconds, which instants and lengths of time are reckoned in
DEFAULT_STALENESS = 60_000 * MILLI
MAX_MILLIS = 9_223_372_036_854  # as many as 64 bits of nanoseconds hold
SHORTEST_WAIT = 0.1  # seconds; whatever the record says, it is not read more often
LONGEST_WAIT = 24 * 3600.0
MAX_HANGING = 4  # reads that never return: no more than that are given up

Read = Callable[[], Optional[Mapping[str, Any]]]

_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Generation(NamedTuple):
    number: int
    shards: int
    ramp: int
    opened: int
    closed: Optional[int]


class Record(NamedTuple):
    generations: Tuple[Generation, ...]
    nursery_shards: int
    staleness: int


class Copy(NamedTuple):
    record: Record
    wall: int  # both clocks from before the read was sent
    monotonic: int


def _between(fields: Mapping[str, Any], name: str, least: int, most: int) -> int:
    n = fields.get(name)
    n = 0 if n is None else n
    check_int(f"target record: {name}", n, least, most)
    return n


def _instant(fields: Mapping[str, Any], name: str) -> Optional[int]:
    text = fields.get(name)
    if text is None or text == "":
        return None
    if not isinstance(text, str) or not _INSTANT.fullmatch(text):
        raise ValueError(f"target record: {name} is {text!r}, not an instant")
    at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def decode(fields: Mapping[str, Any]) -> Record:
    """Returns what writers need of a target record.

    It refuses one that makes no sense: a guess could stamp a generation that is closed.
    """
    _between(fields, "schema", 1, NEWEST_SCHEMA)
    live = fields.get("generations")
    live = [] if live is None else live
    if not isinstance(live, (list, tuple)):
        raise ValueError("target record: generations is not a list")
    nursery = _between(fields, "nursery_shards", 1 if live else 0, MAX_SHARD + 1)
    staleness = _between(fields, "staleness_ms", 0, MAX_MILLIS) * MILLI or DEFAULT_STALENESS
    generations: List[Generation] = []
    for i, g in enumerate(live):
        if not isinstance(g, Mapping):
            raise ValueError(f"target record: generations[{i}] is not a map")
        before = generations[-1] if generations else None
        opened, closed = _instant(g, "opened"), _instant(g, "closed")
        if opened is None or (before is not None and opened < before.opened):
            raise ValueError(f"target record: generations[{i}]: opened is wrong")
        if closed is not None and (closed < opened or i == len(live) - 1):
            raise ValueError(f"target record: generations[{i}]: closed is wrong")
        generations.append(Generation(
            number=_between(g, "number", before.number + 1 if before else 1, MAX_GENERATION),
            shards=_between(g, "shards", 1, MAX_SHARD + 1),
            ramp=_between(g, "ramp_ms", 0, MAX_MILLIS) * MILLI,
            opened=opened,
            closed=closed,
        ))
    return Record(tuple(generations), nursery, staleness)


def move_hash(id: str, generation: int) -> int:
    """A hash of id and generation decides who moves when, so that all writers agree, and
    those that move first are others each time."""
    h = fnv1a32(f"{id}{generation:08d}")
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def share(elapsed: int, ramp: int) -> float:
    """The share of entities that have moved grows by a half in each twelfth of the ramp."""
    if elapsed >= ramp:
        return 1.0
    if ramp == 0:  # it opens at once, but not yet by this clock
        return 0.0
    return 1.5 ** (12 * (max(0, elapsed) / ramp - 1))


class Follower:
    """Stamps entities by the generation that is current. All methods are safe for threads."""

    def __init__(self, read: Read, *, shards: int = 16,
                 on_error: Optional[Callable[[BaseException], None]] = None,
                 wall: Callable[[], int] = time.time_ns,
                 monotonic: Callable[[], int] = time.monotonic_ns) -> None:
        if not callable(read):
            raise TypeError("follow: want a function that reads the target record")
        check_int("shards", shards, 1, MAX_SHARD + 1)
        self._read = read
        self._shards = shards
        self._on_error = on_error
        self._wall = wall
        self._monotonic = monotonic
        self._copy: Optional[Copy] = None  # replaced as a whole, never changed
        self._is_closed = False
        self._ended: Dict[int, threading.Event] = {}  # by the process that reads in the background

    def key(self, id: Id, expires: datetime) -> str:
        """Returns the expiry key of an entity that is written now.

        It reads nothing, and fails only for a wrong id or instant.
        """
        if self._ended and os.getpid() not in self._ended:
            self._start()  # this is a child, and threads do not survive a fork
        text = id_text(id)
        generation, shards = self._choose(text)
        return key(generation, fnv1a32(text) % shards, expires)

    def _choose(self, id: str) -> Tuple[int, int]:
        copy = self._copy
        if copy is None:
            return 0, self._shards
        # The larger of two measures: one clock may have stood still while the machine
        # slept, the other may have been set.
        wall, elapsed = self._wall() - copy.wall, self._monotonic() - copy.monotonic
        record = copy.record
        if wall < 0 or max(wall, elapsed) > record.staleness:
            return 0, max(1, record.nursery_shards)
        now = copy.wall + elapsed
        for i in range(len(record.generations) - 1, -1, -1):
            g = record.generations[i]
            if i == 0 or record.generations[i - 1].closed is not None:
                return g.number, g.shards  # there is no older one that may be stamped
            moved = share(now - g.opened, g.ramp)
            if moved >= 1 or move_hash(id, g.number) < moved * 2**32:
                return g.number, g.shards
        return 0, max(1, record.nursery_shards)

    def refresh(self) -> bool:
        """Reads the record now, and returns whether that was possible. It waits for the read."""
        wall, monotonic = self._wall(), self._monotonic()  # the copy may be as old as that
        try:
            fields = self._read()
            if fields is None:
                raise LookupError("there is no target record")
            copy = Copy(decode(fields), wall, monotonic)
        except Exception as error:  # whatever it is, writers go on
            self._report(error)
            return False
        known = self._copy
        if known is None or known.monotonic <= monotonic:  # else this read was given up meanwhile
            self._copy = copy
        return True

    def close(self) -> None:
        """Ends the reads in the background. It does not wait for one that is under way."""
        self._is_closed = True
        ended = self._ended.get(os.getpid())
        if ended is not None:
            ended.set()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self, error: BaseException) -> None:
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                pass  # a handler that fails must not end the refreshes

    def _staleness(self) -> float:
        copy = self._copy
        return (copy.record.staleness if copy is not None else DEFAULT_STALENESS) / 1e9

    def _start(self) -> None:
        """Begins the reads in this process, once.

        A child shares nothing that locks with its parent: after a fork a lock may stay locked.
        """
        ended = threading.Event()
        if self._ended.setdefault(os.getpid(), ended) is not ended:
            return
        try:
            threading.Thread(target=self._run, args=(ended,), name="reaper-writer", daemon=True).start()
        except RuntimeError as error:  # no thread can be started: the copy ages, and the nursery is stamped
            self._report(error)

    def _run(self, ended: threading.Event) -> None:
        hanging: List[threading.Thread] = []
        while not self._is_closed:
            read = self._refresh_bounded(hanging)
            wait = self._staleness() / (2 if read else 8)  # after a failure it tries again sooner
            ended.wait(min(max(wait, SHORTEST_WAIT), LONGEST_WAIT))  # by the monotonic clock

    def _refresh_bounded(self, hanging: List[threading.Thread]) -> bool:
        """Reads the record in a thread of its own, so that a read that hangs holds up no later one."""
        hanging[:] = [t for t in hanging if t.is_alive()]
        if len(hanging) >= MAX_HANGING:
            self._report(TimeoutError(f"{MAX_HANGING} reads of the target record hang: waiting for one to end"))
            return False
        result: List[bool] = []
        thread = threading.Thread(target=lambda: result.append(self.refresh()), name="reaper-writer-read", daemon=True)
        limit = min(max(self._staleness() / 2, SHORTEST_WAIT), LONGEST_WAIT)
        try:
            thread.start()
        except RuntimeError as error:
            self._report(error)
            return False
        thread.join(limit)
        if thread.is_alive():
            hanging.append(thread)
            self._report(TimeoutError(f"reading the target record takes longer than {limit:g} s"))
            return False
        return bool(result and result[0])


def follow(read: Read, *, shards: int = 16,
           on_error: Optional[Callable[[BaseException], None]] = None) -> Follower:
    """Follows the generations of a target by reads in the background. Never waits for one.

    read returns the fields of the ReaperTarget record, or None if there is no record.
    """
    follower = Follower(read, shards=shards, on_error=on_error)
    follower._start()
    return follower
