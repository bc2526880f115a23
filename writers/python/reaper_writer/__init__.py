"""The six names of a writer of entities that Reaper deletes when they expire.

docs/key-format.md and docs/generations.md of Reaper are the specification;
docs/writer-vectors.json holds all languages to it.
"""

from ._follower import Follower, follow
from ._key import ExpiryKey, in_rollout, key, nursery_key, parse, shard_of

__all__ = ["ExpiryKey", "Follower", "follow", "in_rollout", "key", "nursery_key", "parse", "shard_of"]
