// Expiry keys, built from nothing but docs/key-format.md: this shares no code with
// the Go packages, and that is its purpose.

import {readFileSync} from 'node:fs';

// shardOf is FNV-1a (32 bit) over the UTF-8 bytes of a name, or over the
// decimal digits of a number, modulo the number of shards.
export function shardOf(id, shards) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(String(id))) {
    hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  }
  return hash % shards;
}

// expiryKey prints generation, shard and instant, an RFC 3339 text, in fixed
// width: UTC, rounded up to a millisecond.
export function expiryKey(generation, shard, expires) {
  const [, fraction = ''] = /\.(\d+)/.exec(expires) ?? [];
  const whole = expires.replace(/\.\d+/, '');
  let ms = Date.parse(whole) + Number(fraction.padEnd(3, '0').slice(0, 3));
  if (/[1-9]/.test(fraction.slice(3))) ms++;
  const at = new Date(ms).toISOString().replaceAll('-', '').replaceAll(':', '');
  return `${String(generation).padStart(8, '0')}.${String(shard).padStart(4, '0')}.${at}`;
}

// check holds both against the test vectors, and returns how many those are.
export function check(file) {
  const vectors = JSON.parse(readFileSync(file, 'utf8'));
  for (const v of vectors.keys) {
    const got = expiryKey(v.generation, v.shard, v.expires);
    if (got !== v.key) throw new Error(`key of ${JSON.stringify(v)} is ${got}`);
  }
  for (const v of vectors.shards) {
    const got = shardOf(v.name ?? v.number, v.shards);
    if (got !== v.shard) throw new Error(`shard of ${JSON.stringify(v)} is ${got}`);
  }
  return vectors.keys.length + vectors.shards.length;
}
