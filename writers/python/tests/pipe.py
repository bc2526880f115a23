"""Answers the questions of compare_test.go, one a line; that file describes them."""

import json
import sys
from datetime import datetime, timedelta, timezone

from reaper_writer import Follower, in_rollout, key, nursery_key, parse

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Nanoseconds(datetime):
    nanosecond = 0


def main():
    passed = 0
    out = []
    for line in sys.stdin:
        if line.startswith("{"):
            new = json.loads(line)
            start = (datetime.fromisoformat(new["now"].replace("Z", "+00:00")) - EPOCH) // timedelta(milliseconds=1)
            passed = 0
            follower = Follower(lambda: new["record"], wall=lambda: (start + passed) * 1_000_000,
                                monotonic=lambda: passed * 1_000_000)
            follower.refresh()
            continue
        id, shards, seconds, nanoseconds, percent, millis = line.rstrip("\n").split("\t")
        id = bytes.fromhex(id).decode("utf-8")
        at = EPOCH + timedelta(seconds=int(seconds), microseconds=int(nanoseconds) // 1000)
        expires = Nanoseconds.combine(at.date(), at.timetz())
        expires.nanosecond = int(nanoseconds)
        passed = int(millis)
        nursery = nursery_key(id, expires, int(shards))
        back = parse(nursery)
        out.append("\t".join((nursery, key(back.generation + 1, back.shard, back.expires),
                              "in" if in_rollout(id, "compare", float(percent)) else "out",
                              follower.key(id, expires))))
    sys.stdout.write("\n".join(out) + "\n")


main()
