import os
import signal
import threading
import time
import unittest
from datetime import date, datetime, timedelta, timezone, tzinfo

import reaper_writer
from reaper_writer import follow, in_rollout, key, nursery_key, parse, shard_of

AT = datetime(2026, 11, 21, 0, 7, 30, 855000, timezone.utc)


def record(**fields):
    return {"schema": 1, "nursery_shards": 16, "staleness_ms": 1000, "generations": [
        {"number": 7, "shards": 32, "opened": "2020-01-01T00:00:00.000000Z", "ramp_ms": 0, "closed": ""}], **fields}


def until(condition):
    """Waits for a state, however long that takes."""
    while not condition():
        time.sleep(0.005)


class NoOffset(tzinfo):
    def utcoffset(self, dt):
        return None


class Keys(unittest.TestCase):
    def test_six_names(self):
        for name in ("nursery_key", "key", "parse", "shard_of", "in_rollout", "follow"):
            self.assertIn(name, reaper_writer.__all__)

    def test_instants(self):
        east = timezone(timedelta(hours=5, minutes=45))
        self.assertEqual(key(42, 7, AT.astimezone(east)), "00000042.0007.20261121T000730.855Z")
        self.assertEqual(key(42, 7, AT - timedelta(microseconds=999)), "00000042.0007.20261121T000730.855Z")
        for naive in (datetime(2026, 11, 21), datetime.now(), AT.replace(tzinfo=NoOffset())):
            with self.assertRaisesRegex(ValueError, "time zone"):
                key(0, 0, naive)
        for wrong in (date(2026, 11, 21), "2026-11-21T00:07:30Z", 1795219650, 1.5, None):
            with self.assertRaises(TypeError):
                key(0, 0, wrong)

    def test_types_with_nanoseconds(self):
        class Beyond(datetime):
            """Like pandas.Timestamp: nanoseconds beyond its microseconds."""

            nanosecond = 1

        class Google(datetime):
            """Like DatetimeWithNanoseconds: all of the second, or 0 after a sum."""

            nanosecond = 0

        args = (2026, 11, 21, 0, 7, 30, 854000, timezone.utc)
        self.assertEqual(key(0, 0, Beyond(*args)), "00000000.0000.20261121T000730.855Z")
        self.assertEqual(key(0, 0, Google(*args)), "00000000.0000.20261121T000730.854Z")
        self.assertEqual(key(0, 0, Google(*args) + timedelta(minutes=1)), "00000000.0000.20261121T000830.854Z")
        exact = Google(*args)
        exact.nanosecond = 854_000_001
        self.assertEqual(key(0, 0, exact), "00000000.0000.20261121T000730.855Z")

    def test_ids(self):
        for id in (1842, "1842", "__id1842__"):
            self.assertEqual(shard_of(id, 16), 14)
        self.assertEqual(shard_of(2**63 - 1, 9999), shard_of("9223372036854775807", 9999))
        self.assertEqual(shard_of("\ud83d\ude00", 9999), shard_of("😀", 9999))
        for wrong in (1.5, None, True, b"a"):
            with self.assertRaises(TypeError):
                shard_of(wrong, 16)
        for wrong in (0, -1, 10_001):
            with self.assertRaises(ValueError):
                shard_of("a", wrong)
        for wrong in (1.5, "16", None, True):
            with self.assertRaises(TypeError):
                shard_of("a", wrong)
        with self.assertRaises(TypeError):
            parse(5)
        for percent in (float("nan"), float("-inf"), -5):
            self.assertFalse(in_rollout("a", "b", percent))
        for percent in (float("inf"), 100, 500):
            self.assertTrue(in_rollout("a", "b", percent))
        self.assertEqual(nursery_key("s-1842", AT), "00000000.0006.20261121T000730.855Z")


class Following(unittest.TestCase):
    def test_stamps_at_once_and_learns_in_the_background(self):
        answer = threading.Event()
        self.addCleanup(answer.set)
        with follow(lambda: answer.wait() and record(), shards=4) as f:
            self.assertTrue(f.key("a", AT).startswith("00000000."))
            answer.set()
            until(lambda: f.key("a", AT).startswith("00000007."))
            self.assertEqual(f.key(1842, AT), key(7, shard_of("1842", 32), AT))

    def test_goes_on_after_every_failure(self):
        answers = [record(), OSError("unavailable"), None, {}, "nonsense", record(staleness_ms="soon")]
        last = [record(generations=({**record()["generations"][0], "number": 8},))]
        errors = []

        def read():
            answer = answers.pop(0) if answers else last[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        def on_error(error):
            errors.append(error)
            raise RuntimeError("a handler that fails")

        with follow(read, on_error=on_error) as f:
            until(lambda: f.key("a", AT).startswith("00000008."))
            last[0] = None
            until(lambda: f.key("a", AT).startswith("00000000."))  # no record since: too old
        self.assertEqual(str(errors[0]), "unavailable")
        self.assertGreaterEqual(len(errors), 5)

    def test_a_read_that_hangs_holds_up_no_later_one(self):
        release = threading.Event()
        self.addCleanup(release.set)
        reads = []
        errors = []

        def read():
            reads.append(1)
            if len(reads) == 2:
                release.wait()
            return record(staleness_ms=400)

        with follow(read, on_error=errors.append) as f:
            until(lambda: len(reads) > 3)
            until(lambda: f.key("a", AT).startswith("00000007."))
        self.assertIsInstance(errors[0], TimeoutError)

    def test_only_so_many_reads_hang(self):
        release = threading.Event()
        self.addCleanup(release.set)
        reads = []
        errors = []

        def read():
            reads.append(1)
            if len(reads) > 1:
                release.wait()
            return record(staleness_ms=200)

        with follow(read, on_error=errors.append) as f:
            until(lambda: any("reads of the target record hang" in str(e) for e in errors))
            self.assertTrue(f.key("a", AT).startswith("00000000."))
            self.assertEqual(len(reads), 5)
            release.set()
            until(lambda: len(reads) > 5)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork on this system")
    def test_a_forked_child_follows_too(self):
        with follow(record) as f:
            until(lambda: f.key("a", AT).startswith("00000007."))
            child = os.fork()
            if child == 0:  # the copy of the parent grows old here: only reads of its own renew it
                f._copy = None
                until(lambda: f.key("a", AT).startswith("00000007."))
                os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork on this system")
    def test_a_forked_child_waits_for_no_lock_and_reads_once(self):
        reads = []

        def read():
            reads.append(1)
            return record(staleness_ms=3_600_000)

        f = follow(read)
        self.addCleanup(f.close)
        until(lambda: f.key("a", AT).startswith("00000007."))
        # Other threads may hold these in the instant of a fork; in the child nobody lets go of them.
        locks = [event._cond for event in f._ended.values()]
        for lock in locks:
            lock.acquire()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # rather than wait for ever
            reads.clear()
            gate = threading.Barrier(8)
            threads = [threading.Thread(target=lambda: (gate.wait(), f.key("a", AT))) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            until(lambda: reads)
            f.close()
            until(lambda: not any(t.name == "reaper-writer" for t in threading.enumerate()))
            os._exit(0 if len(reads) == 1 else 1)
        for lock in locks:
            lock.release()
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_keeps_no_process_alive(self):
        with follow(lambda: threading.Event().wait()):
            until(lambda: len([t for t in threading.enumerate() if t.name.startswith("reaper-writer")]) >= 2)
            for t in threading.enumerate():
                self.assertTrue(t.daemon or not t.name.startswith("reaper-writer"), t)

    def test_refuses_what_is_no_function(self):
        with self.assertRaises(TypeError):
            follow(None)
        with self.assertRaises(ValueError):
            follow(record, shards=0)


if __name__ == "__main__":
    unittest.main()
