'use strict';
// Answers the questions of compare_test.go, one a line; that file describes them.

const {createInterface} = require('node:readline');
const {inRollout, key, nurseryKey, parse} = require('..');
const {Follower} = require('../lib/follower.js');

let start;
let passed = 0;
let follower;
const lines = createInterface({input: process.stdin, crlfDelay: Infinity});
(async () => {
  const out = [];
  for await (const line of lines) {
    if (line.startsWith('{')) {
      const {now, record} = JSON.parse(line);
      start = Date.parse(now);
      passed = 0;
      follower = new Follower(() => record, {clock: {wall: () => start + passed, monotonic: () => passed}});
      await follower.refresh();
      continue;
    }
    const [hex, shards, seconds, nanoseconds, percent, millis] = line.split('\t');
    const id = Buffer.from(hex, 'hex').toString('utf8');
    const expires = {seconds: Number(seconds), nanoseconds: Number(nanoseconds)};
    passed = Number(millis);
    const nursery = nurseryKey(id, expires, Number(shards));
    const back = parse(nursery);
    out.push([nursery, key(back.generation + 1, back.shard, back.expires),
      inRollout(id, 'compare', Number(percent)) ? 'in' : 'out', follower.key(id, expires)].join('\t'));
  }
  process.stdout.write(out.join('\n') + '\n');
})();
