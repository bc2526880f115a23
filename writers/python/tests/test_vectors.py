import hashlib
import json
import pathlib
import re
import unittest
from datetime import datetime, timedelta, timezone

from reaper_writer import Follower, in_rollout, key, nursery_key, parse, shard_of

# Nobody changes the vectors for one language alone.
HASH = "51f104959e0ffbfc21448c4ae6522902dd455fde3e1f750771a89e2897259b98"
RAW = (pathlib.Path(__file__).parents[3] / "docs" / "writer-vectors.json").read_bytes()
VECTORS = json.loads(RAW)

_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))")


class Nanoseconds(datetime):
    """Like DatetimeWithNanoseconds of Google's clients."""

    nanosecond = 0


def instant(text):
    *parts, fraction, sign, hours, minutes = _RFC3339.fullmatch(text).groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    nanosecond = int((fraction or "0").ljust(9, "0"))
    at = Nanoseconds(*map(int, parts), nanosecond // 1000, timezone(-offset if sign == "-" else offset))
    at.nanosecond = nanosecond
    return at


def nanos(text):
    return (instant(text) - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) * 1000


class Vectors(unittest.TestCase):
    def test_hash(self):
        self.assertEqual(hashlib.sha256(RAW).hexdigest(), HASH)

    def test_keys_and_back(self):
        self.assertGreaterEqual(len(VECTORS["keys"]), 15)
        for c in VECTORS["keys"]:
            self.assertEqual(key(c["generation"], c["shard"], instant(c["expires"])), c["key"])
            back = parse(c["key"])
            self.assertEqual(back[:2], (c["generation"], c["shard"]))
            self.assertEqual(key(*back), c["key"])
        for c in VECTORS["nursery"]:
            self.assertEqual(nursery_key(c["id"], instant(c["expires"]), c["shards"]), c["key"])

    def test_what_does_not_fit_or_parse(self):
        for c in VECTORS["bad_keys"]:
            with self.subTest(c), self.assertRaises(ValueError):
                key(c["generation"], c["shard"], instant(c["expires"]))
        for text in VECTORS["malformed"]:
            with self.subTest(text), self.assertRaises(ValueError):
                parse(text)

    def test_naive(self):
        for text in VECTORS["naive"][:2]:
            at = datetime.fromisoformat(text)
            with self.subTest(text), self.assertRaisesRegex(ValueError, "no time zone"):
                key(0, 0, at)

    def test_shards_and_rollouts(self):
        for c in VECTORS["shards"]:
            self.assertEqual(shard_of(c["id"], c["shards"]), c["shard"], c)
        for c in VECTORS["rollout"]:
            self.assertFalse(in_rollout(c["id"], c["salt"], c["bucket"] / 100), c)
            self.assertTrue(in_rollout(c["id"], c["salt"], (c["bucket"] + 1) / 100), c)

    def test_replays(self):
        self.assertGreaterEqual(len(VECTORS["replays"]), 10)
        for replay in VECTORS["replays"]:
            with self.subTest(replay["name"]):
                self.assertGreater(run_replay(self, replay), 0)


def run_replay(test, replay):
    now = {"wall": 0, "mono": 0}
    stamps = 0

    def read():
        now["wall"] += step.get("took_ms", 0) * 1_000_000
        now["mono"] += step.get("took_ms", 0) * 1_000_000
        if step.get("fails"):
            raise OSError("the database does not answer")
        return step["read"]

    follower = Follower(read, shards=replay["shards"], wall=lambda: now["wall"], monotonic=lambda: now["mono"])
    for step in replay["steps"]:
        now.update(wall=nanos(step["at"]), mono=step["mono_ms"] * 1_000_000)
        if "read" in step or step.get("fails"):
            follower.refresh()
        for s in step.get("stamps", []):
            test.assertEqual(follower.key(s["id"], instant(replay["expires"])), s["key"], (step["at"], s["id"]))
            stamps += 1
    return stamps


if __name__ == "__main__":
    unittest.main()
