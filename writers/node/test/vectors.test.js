'use strict';

const assert = require('node:assert/strict');
const {createHash} = require('node:crypto');
const {readFileSync} = require('node:fs');
const path = require('node:path');
const {test} = require('node:test');
const {inRollout, key, nurseryKey, parse, shardOf} = require('..');
const {Follower} = require('../lib/follower.js');

// Nobody changes the vectors for one language alone.
const HASH = '51f104959e0ffbfc21448c4ae6522902dd455fde3e1f750771a89e2897259b98';
const raw = readFileSync(path.join(__dirname, '../../../docs/writer-vectors.json'));
const vectors = JSON.parse(raw);

test('the vectors are those that every language is held to', () => {
  assert.equal(createHash('sha256').update(raw).digest('hex'), HASH);
});

test('keys, and back', () => {
  assert.ok(vectors.keys.length >= 15);
  for (const c of vectors.keys) {
    assert.equal(key(c.generation, c.shard, c.expires), c.key);
    const {generation, shard, expires} = parse(c.key);
    assert.deepEqual([generation, shard, key(generation, shard, expires)], [c.generation, c.shard, c.key]);
  }
  for (const c of vectors.nursery) assert.equal(nurseryKey(c.id, c.expires, c.shards), c.key);
});

test('what does not fit, has no zone or does not parse is an error', () => {
  for (const c of vectors.bad_keys) {
    assert.throws(() => key(c.generation, c.shard, c.expires), RangeError, JSON.stringify(c));
  }
  for (const text of vectors.naive) assert.throws(() => key(0, 0, text), RangeError, text);
  for (const text of vectors.malformed) assert.throws(() => parse(text), RangeError, text);
});

test('shards and rollouts', () => {
  for (const c of vectors.shards) assert.equal(shardOf(c.id, c.shards), c.shard, JSON.stringify(c));
  for (const c of vectors.rollout) {
    assert.equal(inRollout(c.id, c.salt, c.bucket / 100), false, JSON.stringify(c));
    assert.equal(inRollout(c.id, c.salt, (c.bucket + 1) / 100), true, JSON.stringify(c));
  }
});

for (const replay of vectors.replays) {
  test(`replay: ${replay.name}`, async () => {
    let step;
    let took = 0;
    const clock = {wall: () => Date.parse(step.at) + took, monotonic: () => step.mono_ms + took};
    const read = async () => {
      took = step.took_ms ?? 0;
      if (step.fails) throw new Error('the database does not answer');
      return step.read;
    };
    const follower = new Follower(read, {shards: replay.shards, clock});
    let stamps = 0;
    for (step of replay.steps) {
      took = 0;
      if ('read' in step || step.fails) await follower.refresh();
      took = 0;
      for (const s of step.stamps ?? []) {
        assert.equal(follower.key(s.id, replay.expires), s.key, `${step.at}: ${JSON.stringify(s.id)}`);
        stamps++;
      }
    }
    assert.ok(stamps > 0);
  });
}
