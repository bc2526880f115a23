'use strict';

const {createHash} = require('node:crypto');
const {isDate} = require('node:util/types');

const MAX_GENERATION = 99_999_999;
const MAX_SHARD = 9_999;
const FIRST = Date.parse('0001-01-01T00:00:00.000Z');
const LAST = Date.parse('9999-12-31T23:59:59.999Z');

// The text that an id is hashed by: a name, or the decimal digits of a numeric id.
function idText(id) {
  if (typeof id === 'bigint') return String(id);
  if (typeof id === 'number') {
    if (!Number.isSafeInteger(id)) {
      throw new RangeError(`id ${id}: JavaScript cannot hold such a number; pass its digits as text, or a BigInt`);
    }
    return String(id);
  }
  if (typeof id !== 'string') throw new TypeError(`id: want a name or a numeric id, got ${typeof id}`);
  const numeric = /^__id(-?[0-9]+)__$/.exec(id); // how native mode writes a numeric id
  return numeric ? numeric[1] : id;
}

function checkInteger(what, n, least, most) {
  if (!Number.isInteger(n) || n < least || n > most) {
    throw new RangeError(`${what} ${String(n)} is not an integer between ${least} and ${most}`);
  }
}

// FNV-1a (32 bit) over the UTF-8 bytes, unsigned. A surrogate without its other half is
// hashed as U+FFFD, which is what UTF-8 makes of it.
function fnv1a32(text) {
  let h = 0x811c9dc5;
  for (const byte of Buffer.from(text, 'utf8')) h = Math.imul(h ^ byte, 0x01000193);
  return h >>> 0;
}

function shardOf(id, shards) {
  checkInteger('shards', shards, 1, MAX_SHARD + 1);
  return fnv1a32(idText(id)) % shards;
}

// An RFC 3339 text with any number of digits, in milliseconds, rounded up.
function textMillis(text) {
  const m = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))$/.exec(text);
  if (!m) {
    throw new RangeError(`expires ${JSON.stringify(text)}: want an instant with a zone, like 2026-11-21T00:07:30.855Z`);
  }
  const [, date, time, fraction = '', sign, hours = '0', minutes = '0'] = m;
  const whole = Date.parse(`${date}T${time}.000Z`);
  // Date.parse takes 30 February for 1 March, and 24:00 for the next day.
  const exists = !Number.isNaN(whole) && new Date(whole).toISOString().startsWith(`${date}T${time}`);
  if (!exists || hours > 23 || minutes > 59) {
    throw new RangeError(`expires ${JSON.stringify(text)}: there is no such instant`);
  }
  const offset = (Number(hours) * 60 + Number(minutes)) * 60_000 * (sign === '-' ? -1 : 1);
  const millis = Number(fraction.padEnd(3, '0').slice(0, 3)) + (/[1-9]/.test(fraction.slice(3)) ? 1 : 0);
  return whole - offset + millis;
}

// Whether it is a Timestamp of Firestore's client. A Temporal.Duration has seconds and nanoseconds, too, and is no
// instant.
function isTimestamp({seconds, nanoseconds, milliseconds}) {
  return Number.isInteger(seconds) && Number.isInteger(nanoseconds) && nanoseconds >= 0 && nanoseconds < 1e9 &&
    milliseconds === undefined;
}

// An instant in milliseconds since 1970, rounded up: nothing may expire early.
function millisOf(expires) {
  if (isDate(expires)) return expires.getTime();
  if (typeof expires === 'string') return textMillis(expires);
  if (typeof expires === 'object' && expires !== null) {
    const {epochNanoseconds, seconds, nanoseconds} = expires;
    if (typeof epochNanoseconds === 'bigint') { // a Temporal.Instant
      // Division cuts towards zero, which is up for what is before 1970.
      return Number(epochNanoseconds / 1_000_000n) + (epochNanoseconds > 0n && epochNanoseconds % 1_000_000n ? 1 : 0);
    }
    if (isTimestamp(expires)) {
      return seconds * 1000 + Math.ceil(nanoseconds / 1_000_000);
    }
  }
  throw new TypeError('expires: want a Date, a Timestamp, a Temporal.Instant, or RFC 3339 text with a zone');
}

function key(generation, shard, expires) {
  checkInteger('generation', generation, 0, MAX_GENERATION);
  checkInteger('shard', shard, 0, MAX_SHARD);
  const millis = millisOf(expires);
  if (!(millis >= FIRST && millis <= LAST)) {
    throw new RangeError('expires: not an instant in the years 1 to 9999');
  }
  const instant = new Date(millis).toISOString().replace(/[-:]/g, '');
  return `${String(generation).padStart(8, '0')}.${String(shard).padStart(4, '0')}.${instant}`;
}

function nurseryKey(id, expires, shards = 16) {
  return key(0, shardOf(id, shards), expires);
}

function parse(text) {
  if (typeof text !== 'string') throw new TypeError(`malformed expiry key: it is a ${typeof text}, not a text`);
  const m = /^(\d{8})\.(\d{4})\.(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\.(\d{3})Z$/.exec(text);
  if (m) {
    const expires = new Date(Date.parse(`${m[3]}-${m[4]}-${m[5]}T${m[6]}:${m[7]}:${m[8]}.${m[9]}Z`));
    const [generation, shard] = [Number(m[1]), Number(m[2])];
    // Printed again it is the same, unless the instant does not exist.
    if (!Number.isNaN(expires.getTime()) && expires.getTime() >= FIRST && key(generation, shard, expires) === text) {
      return {generation, shard, expires};
    }
  }
  const start = JSON.stringify(text.slice(0, 80));
  throw new RangeError(`malformed expiry key ${start}: want 00000042.0007.20261121T000730.855Z`);
}

function inRollout(id, salt, percent) {
  if (typeof salt !== 'string') throw new TypeError(`salt: want a text, got ${typeof salt}`);
  if (typeof percent !== 'number') throw new TypeError(`percent: want a number, got ${typeof percent}`);
  const sum = createHash('sha256').update(`${salt}\n${idText(id)}`, 'utf8').digest();
  return Number(sum.readBigUInt64BE(0) % 10_000n) < Math.floor(percent * 100 + 0.5);
}

module.exports = {
  MAX_GENERATION, MAX_SHARD, checkInteger, isTimestamp, fnv1a32, idText, inRollout, key, nurseryKey, parse, shardOf, textMillis,
};
