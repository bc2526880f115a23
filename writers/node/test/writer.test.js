'use strict';

const assert = require('node:assert/strict');
const {spawnSync} = require('node:child_process');
const {test} = require('node:test');
const writer = require('..');
const {follow, inRollout, key, nurseryKey, parse, shardOf} = writer;

const record = (fields = {}) => ({
  schema: 1,
  generations: [{number: 7, shards: 32, opened: '2020-01-01T00:00:00.000000Z', ramp_ms: 0, closed: ''}],
  nursery_shards: 16, staleness_ms: 1000, ...fields,
});

// until waits for a state, however long that takes.
const until = async condition => {
  while (!condition()) await new Promise(resolve => setTimeout(resolve, 5));
};

test('six names, for import and for require', async () => {
  const names = ['nurseryKey', 'key', 'parse', 'shardOf', 'inRollout', 'follow'].sort();
  assert.deepEqual(Object.keys(writer).sort(), names);
  const module = await import('@reaper-ttl/writer');
  for (const name of names) assert.equal(module[name], writer[name]);
});

test('every form of an instant', () => {
  const want = '00000000.0000.20261121T000730.855Z';
  for (const expires of [
    new Date('2026-11-21T00:07:30.855Z'),
    '2026-11-21T00:07:30.854000001Z',
    {seconds: 1795219650, nanoseconds: 854_000_001},
    {epochNanoseconds: 1795219650_854_000_001n},
  ]) assert.equal(key(0, 0, expires), want);
  assert.equal(key(0, 0, {epochNanoseconds: -1n}), '00000000.0000.19700101T000000.000Z');
  assert.equal(key(0, 0, {epochNanoseconds: -1_000_001n}), '00000000.0000.19691231T235959.999Z');
  assert.equal(key(0, 0, {seconds: -1, nanoseconds: 1}), '00000000.0000.19691231T235959.001Z');
  const never = [new Date(NaN), new Date(8.64e15)];
  const duration = {hours: 0, minutes: 30, seconds: 0, milliseconds: 0, microseconds: 0, nanoseconds: 0};
  for (const wrong of [...never, duration, {seconds: 1, nanoseconds: 1e9}, {seconds: 1, nanoseconds: -1}, 1795219650, 1795219650855, null, undefined, {}, [], '', 5n, true]) {
    assert.throws(() => key(0, 0, wrong), /expires/);
  }
});

test('every form of an id', () => {
  for (const id of [1842, 1842n, '1842', '__id1842__']) assert.equal(shardOf(id, 16), 14);
  assert.equal(shardOf(9223372036854775807n, 9999), shardOf('9223372036854775807', 9999));
  assert.equal(shardOf(-0, 16), shardOf('0', 16));
  for (const wrong of [2 ** 53, 1.5, NaN, null, undefined, {}, true]) assert.throws(() => shardOf(wrong, 16), /id/);
  for (const wrong of [0, -1, 1.5, 10_001, '16', undefined]) assert.throws(() => shardOf('a', wrong), /shards/);
  assert.throws(() => parse(5), TypeError);
  assert.throws(() => inRollout('a', 'b', '5'), TypeError);
  assert.throws(() => inRollout('a', undefined, 5), TypeError);
  assert.equal(inRollout('a', 'b', NaN), false);
  assert.equal(nurseryKey('s-1842', new Date(0)), '00000000.0006.19700101T000000.000Z');
});

test('follow stamps at once, and learns in the background', async () => {
  let answer;
  const follower = follow(() => new Promise(resolve => { answer = resolve; }), {shards: 4});
  try {
    assert.match(follower.key('a', new Date(0)), /^00000000\./);
    answer(record());
    await until(() => follower.key('a', new Date(0)).startsWith('00000007.'));
    assert.equal(follower.key(1842n, new Date(0)), key(7, shardOf('1842', 32), new Date(0)));
  } finally {
    follower.stop();
  }
});

test('follow goes on after every failure, and tells of it', async () => {
  const errors = [];
  const answers = [
    () => { throw new Error('at once'); },
    () => Promise.reject(new Error('later')),
    () => null,
    () => record({staleness_ms: 'soon'}),
  ];
  // A staleness of a second makes it try again after an eighth of that.
  let reads = 0;
  let last = record({generations: [{...record().generations[0], number: 8n, shards: 32n}]});
  const follower = follow(() => (reads++ === 0 ? record() : (answers.shift() ?? (() => last))()), {
    onError: error => { errors.push(error.message); throw new Error('a handler that fails'); },
  });
  try {
    await until(() => follower.key('a', new Date(0)).startsWith('00000008.'));
    assert.deepEqual(errors.slice(0, 3), ['at once', 'later', 'there is no target record']);
    last = null;
    await until(() => follower.key('a', new Date(0)).startsWith('00000000.')); // no record since: too old
  } finally {
    follower.stop();
  }
});

test('a read that hangs holds up no later one', async () => {
  let reads = 0;
  let aborted = 0;
  const follower = follow(({signal}) => {
    if (reads++ === 1) {
      signal.addEventListener('abort', () => aborted++);
      return new Promise(() => {});
    }
    return record({staleness_ms: 400});
  });
  try {
    await until(() => reads > 3);
    assert.equal(aborted, 1);
  } finally {
    follower.stop();
  }
  const before = reads;
  await new Promise(resolve => setTimeout(resolve, 300));
  assert.ok(reads <= before + 1); // one may have been under way
});

test('stop ends a read that is under way, and its timer', async () => {
  const errors = [];
  const timers = () => process.getActiveResourcesInfo().filter(name => name === 'Timeout').length;
  const before = timers();
  let reading;
  const follower = follow(({signal}) => {
    reading = signal;
    return new Promise(() => {});
  }, {onError: error => errors.push(error)});
  assert.equal(reading.aborted, false);
  follower.stop();
  assert.equal(reading.aborted, true);
  await new Promise(resolve => setImmediate(resolve));
  assert.equal(timers(), before);
  assert.deepEqual(errors, []);
});

test('an older answer does not replace a newer one', async () => {
  const {Follower} = require('../lib/follower.js');
  const answers = [];
  let now = Date.now();
  const follower = new Follower(() => new Promise(resolve => answers.push(resolve)),
    {clock: {wall: () => now, monotonic: () => now}});
  const reads = [follower.refresh(), (now += 10, follower.refresh())];
  const of = number => record({generations: [{...record().generations[0], number}]});
  answers[1](of(8));
  await reads[1];
  answers[0](of(7));
  assert.equal(await reads[0], true);
  assert.match(follower.key('a', new Date(0)), /^00000008\./);
});

test('a follower keeps no process alive', async () => {
  const writer = JSON.stringify(require.resolve('..'));
  for (const read of ['() => new Promise(() => {})', '() => null']) {
    const {status} = spawnSync(process.execPath, ['-e', `require(${writer}).follow(${read})`], {timeout: 60_000});
    assert.equal(status, 0, read);
  }
});

test('follow refuses what is no function', () => {
  assert.throws(() => follow(null), TypeError);
  assert.throws(() => follow(() => null, {shards: 0}), RangeError);
});
