'use strict';

const assert = require('node:assert/strict');
const {test} = require('node:test');
const {fromDatastore, fromFirestore, merge, numbers, read, readPage} = require('../read.js');

// A generator of its own, so that every run has the same data.
function random(seed) {
  return n => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) % n;
}

const numeric = (a, b) => a - b;
const collect = async sequence => {
  const out = [];
  for await (const item of sequence) out.push(item);
  return out;
};
const upTo = n => Array.from({length: n}, (_, i) => i);
const settled = () => new Promise(resolve => setImmediate(resolve)); // all that needs no I/O has happened

// A source in memory that keeps books.
class Shard {
  items = [];
  calls = 0;
  given = 0;
  constructor(fields) {
    Object.assign(this, fields);
    this.source = async n => {
      this.calls++;
      await this.enter?.();
      if (this.calls === this.fails) throw new Error('the shard is on fire');
      if (this.empty && this.calls % 2 === 1) return {items: [], more: true};
      const items = this.items.slice(this.given, this.given + n);
      this.given += items.length;
      return {items, more: this.given < this.items.length};
    };
  }
}

// The numbers 0 to n-1, dealt out to shards by a share for each.
function spread(next, n, shares, fields) {
  const shards = shares.map(() => new Shard(fields));
  const pot = shares.flatMap((share, i) => Array(share).fill(i));
  for (let i = 0; i < n; i++) shards[pot[next(pot.length)]].items.push(i);
  return shards;
}

const even = n => Array(n).fill(1);
const sources = shards => shards.map(s => s.source);

test('a merge is in order, and reads little', async () => {
  for (const [name, n, shares, bounds, most] of [
    ['the first 100 of 10,000 over 16 shards', 10_000, even(16), {limit: 100}, 100 + 16 * 9],
    ['with a page of 5', 10_000, even(16), {limit: 100, page: 5}, 100 + 16 * 5],
    ['one hot shard', 10_000, [1000, ...even(15)], {limit: 100}, 300],
    ['one shard', 10_000, even(1), {limit: 100}, 100],
    ['one wanted', 10_000, even(16), {limit: 1}, 16],
    ['a deep read', 10_000, even(16), {limit: 5000}, 5000 + 16 * 100],
    ['everything', 10_000, even(16), {}, 10_000],
    ['fewer than wanted', 70, even(16), {limit: 100}, 70],
    ['mostly empty shards', 3, even(300), {limit: 100}, 3],
    ['page 1', 1000, even(3), {page: 1}, 1000],
  ]) {
    for (let seed = 1; seed <= 5; seed++) {
      const shards = spread(random(seed), n, shares);
      const want = Math.min(n, bounds.limit ?? n);
      assert.deepEqual(await collect(merge(sources(shards), numeric, bounds)), upTo(want), name);
      const reads = shards.reduce((sum, s) => sum + s.given, 0);
      assert.ok(reads <= most, `${name}: ${reads} items were read, want at most ${most}`);
    }
  }
  assert.deepEqual(await collect(merge([], numeric)), []);
});

test('never more than a page of a source is read and not yet yielded', async () => {
  const page = 7;
  const shards = spread(random(1), 1000, [5, 1, 1, 9]);
  const owner = new Map(shards.flatMap(s => s.items.map(item => [item, s])));
  const taken = new Map(shards.map(s => [s, 0]));
  for await (const item of merge(sources(shards), numeric, {page})) {
    await settled(); // for pages that were asked for ahead
    taken.set(owner.get(item), taken.get(owner.get(item)) + 1);
    for (const s of shards) assert.ok(s.given - taken.get(s) <= page, `at item ${item}`);
  }
  assert.equal(taken.get(shards[0]), shards[0].items.length);
});

test('calls are made in parallel, as many as allowed', async () => {
  for (const [parallel, want] of [[3, 3], [undefined, 20]]) {
    let now = 0;
    let most = 0;
    const enter = async () => {
      most = Math.max(most, ++now);
      await settled();
      now--;
    };
    const shards = spread(random(1), 1000, even(20), {enter});
    assert.deepEqual(await collect(merge(sources(shards), numeric, {parallel})), upTo(1000));
    assert.equal(most, want);
  }
});

test('equal items come in the order of their sources', async () => {
  const from = upTo(5).map(i => {
    let at = 0;
    return () => ({items: [{at: ++at, i}], more: at < 3});
  });
  const got = await collect(merge(from, (a, b) => a.at - b.at));
  assert.deepEqual(got.map(v => v.at * 10 + v.i), [1, 2, 3].flatMap(at => upTo(5).map(i => at * 10 + i)));
});

test('an empty page is not the end', async () => {
  const shards = spread(random(1), 100, even(4), {empty: true});
  assert.deepEqual(await collect(merge(sources(shards), numeric, {page: 10})), upTo(100));
});

test('the first error comes after what is before it in order, and ends all', async () => {
  const got = [];
  const shards = [new Shard({items: [0, 2, 4, 6, 8, 10]}), new Shard({items: [1, 3, 5, 7, 9, 11], fails: 2})];
  await assert.rejects(async () => {
    for await (const item of merge(sources(shards), numeric, {page: 2})) got.push(item);
  }, /on fire/);
  assert.deepEqual(got, [0, 1, 2, 3]);
  const behind = [new Shard({items: [0, 2, 4]}), new Shard({items: [1, 3, 5], fails: 2})];
  assert.deepEqual(await collect(merge(sources(behind), numeric, {page: 2, limit: 4})), [0, 1, 2, 3]);
});

test('a start that failed does not wait for what is slow', async () => {
  const never = new Shard({enter: () => new Promise(() => {})});
  await assert.rejects(collect(merge([never.source, new Shard({fails: 1}).source], numeric)), /on fire/);
});

test('a signal ends a read at once, also while a query hangs', async () => {
  const abort = new AbortController();
  const seen = [];
  const hangs = (n, {signal}) => new Promise(() => {
    signal.addEventListener('abort', () => seen.push(signal.reason.message));
  });
  const reading = collect(merge([hangs, new Shard({items: [1]}).source], numeric, {signal: abort.signal}));
  await settled();
  abort.abort(new Error('the client has gone'));
  await assert.rejects(reading, /the client has gone/);
  assert.deepEqual(seen, ['the client has gone']);
  await assert.rejects(collect(merge([], numeric, {signal: abort.signal})), /the client has gone/);
});

test('who leaves early starts no further call', async () => {
  const shards = spread(random(1), 1000, even(4));
  for await (const item of merge(sources(shards), numeric, {page: 2, parallel: 1})) if (item === 5) break;
  const calls = shards.map(s => s.calls);
  await settled();
  assert.deepEqual(shards.map(s => s.calls), calls);
});

test('sources that break their promise are found out', async () => {
  for (const [pages, bounds, want] of [
    [[[2, 1]], {}, /source 0 is not in order: its item 2 belongs before item 1/],
    [[[5, 6], [4]], {}, /source 0 is not in order: its item 3 belongs before item 2/],
    [[[1, 2, 3]], {page: 2}, /source 0 returned 3 items where at most 2 were wanted/],
  ]) {
    const left = [...pages];
    await assert.rejects(collect(merge([() => ({items: left.shift(), more: left.length > 0})], numeric, bounds)), want);
  }
  for (const bounds of [{limit: 0}, {limit: -1}, {page: 1.5}, {parallel: '2'}]) {
    await assert.rejects(collect(merge([], numeric, bounds)), RangeError);
  }
});

// A store in memory: entries of all shards, of which open reads some.
const before = (a, b) => (a.at !== b.at ? (a.at < b.at ? -1 : 1) : Number(BigInt(a.path[1]) - BigInt(b.path[1])));
function storeOf(entries) {
  const reads = {items: 0, queries: 0};
  const open = ({values, newest, from, until, after}) => {
    const order = newest ? (a, b) => before(b, a) : before;
    let last = after;
    return async n => {
      await settled();
      const found = entries.filter(e => values.includes(e.shard) && (from === undefined || e.at >= from) &&
        (until === undefined || e.at < until) && (last === undefined || order(last, e) < 0)).sort(order).slice(0, n);
      last = found.at(-1) ?? last;
      reads.items += found.length;
      reads.queries++;
      return {items: found.map(e => ({at: e.at, path: e.path, item: e})), more: found.length === n};
    };
  };
  return {open, reads};
}

// Entries with many at one instant, and instants that differ by a microsecond.
function entriesOf(next, n, shards, first = 1) {
  return Array.from({length: n}, (_, i) => ({
    shard: next(shards), id: first + i, path: ['Event', BigInt(first + i)],
    at: BigInt(1_795_219_650_000_000 + next(n / 3 | 0)),
  }));
}

test('pages have no gap and nothing twice, while shards are added and writers work', async () => {
  for (const newest of [false, true]) {
    for (let seed = 1; seed <= 20; seed++) {
      const next = random(seed);
      const all = entriesOf(next, 600, 16);
      const stable = all.filter(() => next(4) > 0);
      const {open} = storeOf(all);
      const got = [];
      let added = 10_000;
      let after = null;
      do {
        // Others go, some come, in shards that are new; each page is read by other queries.
        const gone = all.findIndex(e => !stable.includes(e));
        if (gone >= 0) all.splice(gone, 1);
        all.push(...entriesOf(next, 3, 24, added += 3));
        const options = {values: numbers(24), newest, limit: 1 + next(40), perQuery: 1 + next(30), page: 1 + next(20)};
        const {items, next: token} = await readPage(open, {...options, after});
        got.push(...items);
        after = token;
      } while (after !== null);
      const want = [...stable].sort(newest ? (a, b) => before(b, a) : before);
      assert.deepEqual(got.filter(e => stable.includes(e)).map(e => e.id), want.map(e => e.id), `seed ${seed}`);
      assert.equal(new Set(got.map(e => e.id)).size, got.length, `seed ${seed}: something came twice`);
      for (let i = 1; i < got.length; i++) assert.equal(before(got[i - 1], got[i]) > 0, newest);
    }
  }
});

test('a read is bounded in time, to the microsecond', async () => {
  const at = micros => ({shard: 0, at: micros, path: ['E', micros], id: micros});
  const base = 1_795_219_650_854_000n;
  const {open} = storeOf([at(base), at(base + 1n), at(base + 2n), at(base + 1000n)]);
  const ids = async options => (await collect(read(open, {values: [0], ...options}))).map(e => Number(e.id - base));
  assert.deepEqual(await ids({from: '2026-11-21T00:07:30.854Z'}), [0, 1, 2, 1000]);
  assert.deepEqual(await ids({from: '2026-11-21T00:07:30.854000001Z'}), [1, 2, 1000]);
  assert.deepEqual(await ids({from: '2026-11-21T01:07:30.854002+01:00'}), [2, 1000]);
  assert.deepEqual(await ids({from: {seconds: 1795219650, nanoseconds: 854_001_000}, newest: true}), [1000, 2, 1]);
  assert.deepEqual(await ids({until: new Date('2026-11-21T00:07:30.855Z')}), [0, 1, 2]);
  assert.deepEqual(await ids({until: {epochNanoseconds: 1795219650_854_001_001n}}), [0, 1]);
  assert.deepEqual(await ids({from: new Date(0), until: new Date(0)}), []);
});

test('paths are ordered as the stores order them', async () => {
  const paths = [
    ['E', -5n], ['E', 7n], ['E', 7n, 'A', 'x'], ['E', 12n], ['E', 2n ** 62n], ['E', '12'], ['E', '7'], ['E', 'B'],
    ['E', 'a'], ['E', 'a', 'E', 'x'], ['E', 'a\x01'], ['E', 'aa'],
    ['E', 'é'], ['E', '\uff61'], ['E', '\u{10000}'], ['F', 1n],
  ];
  for (const newest of [false, true]) {
    const want = newest ? [...paths].reverse() : paths;
    const entries = want.map((path, i) => ({at: 5n, path, item: path, shard: i % 3}));
    const open = ({values}) => () => ({items: entries.filter(e => values.includes(e.shard)), more: false});
    assert.deepEqual(await collect(read(open, {values: numbers(3), perQuery: 1, newest})), want);
  }
});

test('a token goes on in its own order, whatever the names', async () => {
  const seen = [];
  const open = ({after}) => {
    seen.push(after);
    return () => ({items: [{at: 5n, path: ['E', 7n, 'É/"', '__id7__'], item: 1}], more: true});
  };
  const {next} = await readPage(open, {values: [0], limit: 1});
  assert.match(next, /^[A-Za-z0-9_-]+$/);
  await readPage(open, {values: [1, 0], limit: 1, perQuery: 1, after: next}).catch(() => {});
  assert.deepEqual(seen, [undefined, ...Array(2).fill({at: 5n, path: ['E', 7n, 'É/"', '__id7__']})]);
  await assert.rejects(readPage(open, {values: [0], limit: 1, newest: true, after: next}), /oldest first/);
  const forged = fields => Buffer.from(JSON.stringify(fields)).toString('base64url');
  for (const after of [
    '', 'x', 5, {}, forged([2, 'oldest', '5', ['E', 'a']]), forged([1, 'oldest', '5.5', ['E']]),
    forged([1, 'oldest', '99999999999999999999', ['E']]), forged([1, 'oldest', '5', []]),
    forged([1, 'oldest', '5', [{id: 'x'}]]), forged([1, 'oldest', '5', ['E', {id: String(2n ** 63n)}]]),
  ]) {
    await assert.rejects(readPage(open, {values: [0], limit: 1, after}), /is not a page token/, String(after));
  }
});

test('what could not give the right answer is refused before anything is read', async () => {
  const {open, reads} = storeOf([]);
  for (const [options, want] of [
    [{values: undefined}, /there are no shard values/],
    [{values: []}, /there are no shard values/],
    [{values: Array.from({length: 10_000}, (_, i) => i)}, /at most 9999/],
    [{values: [1, 2, 1]}, /shard value 3 of 3: 1 is there twice/],
    [{values: [1, '1']}, /is a string, while the first one is a number/],
    [{values: [1.5]}, /neither an integer nor a text/],
    [{values: [null]}, /neither/],
    [{values: [5n]}, /5n is neither/],
    [{values: ['\ud800']}, /not valid Unicode/],
    [{values: [1], perQuery: 31}, /perQuery 31/],
    [{values: [1], perQuery: 0}, /perQuery 0/],
    [{values: [1], limit: -1}, /limit -1/],
    [{values: [1], from: new Date(5), until: new Date(4)}, /ends before it starts/],
    [{values: [1], from: 5}, /from: want a Date/],
    [{values: [1], until: new Date(NaN)}, /until: want a Date/],
    [{values: [1], until: '2026-11-21'}, /zone/],
  ]) {
    await assert.rejects(collect(read(open, options)), want);
  }
  await assert.rejects(readPage(open, {values: [1]}), /limit undefined/);
  await assert.rejects(collect(read(undefined, {values: [1]})), /fromFirestore or fromDatastore/);
  assert.equal(reads.queries, 0);
  class Timestamp {}
  const good = {kind: 'E', shard: 'a', time: 'b', PropertyFilter: class {}};
  for (const [make, want] of [
    [() => fromFirestore({}, {shard: 'a', time: 'a', Timestamp}), /"a" holds both/],
    [() => fromFirestore({}, {shard: 'a', Timestamp}), /time is not the name/],
    [() => fromFirestore({}, {shard: 'a', time: 'b'}), /Timestamp is missing/],
    [() => fromDatastore({}, {shard: 'a', time: 'b', PropertyFilter: Timestamp}), /kind/],
    [() => fromDatastore({}, {kind: 'E', shard: 'a', time: 'b'}), /PropertyFilter is missing/],
    [() => fromDatastore({}, {...good, shard: ''}), /shard is not the name/],
    [() => fromDatastore({}, {...good, where: {c: [1]}}), /not a single value/],
    [() => fromDatastore({}, {...good, ancestor: {namespace: 'x'}}), /namespace "x"/],
  ]) assert.throws(make, want);
});

test('an error of a query says where, and keeps its code', async () => {
  const open = () => () => {
    throw Object.assign(new Error('9 FAILED_PRECONDITION: create it here: https://example'), {code: 9});
  };
  await assert.rejects(collect(read(open, {values: numbers(31)})), error => {
    assert.match(error.message, /^read 31 shards by 2 queries: 9 FAILED_PRECONDITION: create it here/);
    return error.code === 9 && error.cause.code === 9;
  });
});

test('for import and for require', async () => {
  const module = await import('@reaper-ttl/writer/read');
  const names = {fromDatastore, fromFirestore, merge, numbers, read, readPage};
  for (const [name, f] of Object.entries(names)) assert.equal(module[name], f);
});
