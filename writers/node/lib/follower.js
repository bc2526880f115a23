'use strict';

const {performance} = require('node:perf_hooks');
const {MAX_GENERATION, MAX_SHARD, checkInteger, fnv1a32, idText, key, shardOf} = require('./key.js');

const NEWEST_SCHEMA = 2; // what writers read means the same in 1 and 2
const DEFAULT_STALENESS = 60_000;
const MAX_MILLIS = 9_223_372_036_854; // as many as 64 bits of nanoseconds hold
const SHORTEST_WAIT = 100; // whatever the record says, it is not read more often
const LONGEST_WAIT = 2 ** 31 - 1; // the most that setTimeout takes
const STOPPED = new Error('the follower was stopped');

// Field readers: what is absent is the zero value, what has another type is an error.
function integer(fields, name) {
  const n = fields[name] ?? 0;
  const number = typeof n === 'bigint' ? Number(n) : n;
  if (!Number.isSafeInteger(number)) throw new Error(`target record: ${name} is ${String(n)}, not an integer`);
  return number;
}

function between(fields, name, least, most) {
  const n = integer(fields, name);
  if (n < least || n > most) throw new Error(`target record: ${name} ${n} is not between ${least} and ${most}`);
  return n;
}

function instant(fields, name) {
  const text = fields[name] ?? '';
  if (text === '') return null;
  const valid = typeof text === 'string' && /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/.test(text);
  const whole = valid ? Date.parse(`${text.slice(0, 19)}Z`) : NaN;
  if (Number.isNaN(whole) || new Date(whole).toISOString().slice(0, 19) !== text.slice(0, 19)) {
    throw new Error(`target record: ${name} is ${JSON.stringify(text)}, not an instant`);
  }
  // In two parts: together they have more digits than a number holds.
  return {whole, fraction: Number(text.slice(20, 26)) / 1000};
}

const isBefore = (a, b) => a.whole < b.whole || (a.whole === b.whole && a.fraction < b.fraction);

// What writers need of a target record. It refuses one that makes no sense: a guess
// could stamp a generation that is closed.
function decode(fields) {
  between(fields, 'schema', 1, NEWEST_SCHEMA);
  const list = fields.generations ?? [];
  if (!Array.isArray(list)) throw new Error('target record: generations is not a list');
  const nurseryShards = between(fields, 'nursery_shards', list.length > 0 ? 1 : 0, 10_000);
  const staleness = between(fields, 'staleness_ms', 0, MAX_MILLIS) || DEFAULT_STALENESS;
  const generations = [];
  for (const [i, g] of list.entries()) {
    if (typeof g !== 'object' || g === null) throw new Error(`target record: generations[${i}] is not a map`);
    const before = generations.at(-1) ?? {number: 0, opened: {whole: -Infinity, fraction: 0}};
    const one = {
      number: between(g, 'number', before.number + 1, MAX_GENERATION),
      shards: between(g, 'shards', 1, MAX_SHARD + 1),
      ramp: between(g, 'ramp_ms', 0, MAX_MILLIS),
      opened: instant(g, 'opened'),
      closed: instant(g, 'closed'),
    };
    if (one.opened === null || isBefore(one.opened, before.opened)) {
      throw new Error(`target record: generations[${i}]: opened is wrong`);
    }
    if (one.closed !== null && (isBefore(one.closed, one.opened) || i === list.length - 1)) {
      throw new Error(`target record: generations[${i}]: closed is wrong`);
    }
    generations.push(one);
  }
  return {generations, nurseryShards, staleness};
}

// A hash of id and generation decides who moves when, so that all writers agree, and
// those that move first are others each time.
function moveHash(id, generation) {
  let h = fnv1a32(id + String(generation).padStart(8, '0'));
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

// The share of entities that have moved grows by a half in each twelfth of the ramp.
const share = (elapsed, ramp) => (elapsed >= ramp ? 1 : 1.5 ** (12 * (Math.max(0, elapsed) / ramp - 1)));

class Follower {
  #read;
  #shards;
  #onError;
  #clock;
  #copy = null; // replaced as a whole, never changed
  #stopped = false;
  #reading = new AbortController(); // of the read in the background
  #wake = () => {};

  constructor(read, {shards = 16, onError = () => {}, clock} = {}) {
    if (typeof read !== 'function') throw new TypeError('follow: want a function that reads the target record');
    checkInteger('shards', shards, 1, MAX_SHARD + 1);
    this.#read = read;
    this.#shards = shards;
    this.#onError = onError;
    this.#clock = clock ?? {wall: () => Date.now(), monotonic: () => performance.now()};
  }

  key(id, expires) {
    const text = idText(id);
    const {number, shards} = this.#choose(text);
    return key(number, shardOf(text, shards), expires);
  }

  #choose(id) {
    const copy = this.#copy;
    if (copy === null) return {number: 0, shards: this.#shards};
    // The larger of two measures: one clock may have stood still while the machine
    // slept, the other may have been set.
    const wall = this.#clock.wall() - copy.wall;
    const elapsed = this.#clock.monotonic() - copy.monotonic;
    const {generations, nurseryShards, staleness} = copy.record;
    const nursery = {number: 0, shards: Math.max(1, nurseryShards)};
    if (wall < 0 || Math.max(wall, elapsed) > staleness) return nursery;
    for (let i = generations.length - 1; i >= 0; i--) {
      const g = generations[i];
      const oldest = i === 0 || generations[i - 1].closed !== null;
      const moved = share(copy.wall - g.opened.whole - g.opened.fraction + elapsed, g.ramp);
      if (oldest || moved >= 1 || moveHash(id, g.number) < moved * 2 ** 32) return g;
    }
    return nursery;
  }

  refresh() {
    return this.#refresh(new AbortController());
  }

  async #refresh(abort) {
    const limit = Math.min(Math.max(this.#staleness() / 2, SHORTEST_WAIT), LONGEST_WAIT);
    let timer;
    try {
      const wall = this.#clock.wall(); // before the read is sent: the copy may be as old as that
      const monotonic = this.#clock.monotonic();
      const ended = new Promise((_, reject) => {
        abort.signal.addEventListener('abort', () => reject(abort.signal.reason), {once: true});
        const late = new Error(`reading the target record took longer than ${limit} ms`);
        timer = setTimeout(() => abort.abort(late), limit);
        timer.unref?.();
      });
      // In a function of its own, so that one that throws at once is caught, too.
      const fields = await Promise.race([(async () => this.#read({signal: abort.signal}))(), ended]);
      if (fields === null || fields === undefined) throw new Error('there is no target record');
      const record = decode(fields);
      // Another read, sent later, may have answered before.
      if (this.#copy === null || this.#copy.monotonic <= monotonic) this.#copy = {record, wall, monotonic};
      return true;
    } catch (error) {
      if (error === STOPPED) return false;
      try {
        Promise.resolve(this.#onError(error)).catch(() => {});
      } catch {
        // A handler that fails must not end the refreshes.
      }
      return false;
    } finally {
      clearTimeout(timer);
    }
  }

  stop() {
    this.#stopped = true;
    this.#reading.abort(STOPPED);
    this.#wake();
  }

  #staleness() {
    return this.#copy?.record.staleness ?? DEFAULT_STALENESS;
  }

  async run() {
    while (!this.#stopped) {
      this.#reading = new AbortController();
      const read = await this.#refresh(this.#reading);
      if (this.#stopped) return;
      const wait = this.#staleness() / (read ? 2 : 8); // after a failure it tries again sooner
      await new Promise(resolve => {
        // Node's timers follow the monotonic clock. This one keeps no process alive.
        const timer = setTimeout(resolve, Math.min(Math.max(wait, SHORTEST_WAIT), LONGEST_WAIT));
        timer.unref?.();
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }
}

function follow(read, options) {
  const follower = new Follower(read, options);
  follower.run();
  return follower;
}

module.exports = {Follower, decode, follow, moveHash, share};
