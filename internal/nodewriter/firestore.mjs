// Writes documents into a database in native mode with Google's own Node client:
// a collection for each of the four layouts, and a collection group.
//
// Usage: node firestore.mjs '{"project": "p", "vectors": "docs/key-vectors.json", "documents": 20000, …}'
// (see NativeOptions in native.go). It prints a JSON manifest of what it wrote.

import {FieldValue, Firestore, GeoPoint, Timestamp} from '@google-cloud/firestore';
import {check, expiryKey, shardOf} from './key.mjs';

async function main(o) {
  const manifest = {vectors: check(o.vectors), documents: []};
  const client = new Firestore({projectId: o.project, ...(o.database ? {databaseId: o.database} : {}), useBigInt: true});
  const now = BigInt(Date.parse(o.now)) * 1000n; // microseconds
  let random = 42; // a generator of its own, so that every run writes the same
  const next = n => (random = (Math.imul(random, 1664525) + 1013904223) >>> 0) % n;

  let batch = client.batch();
  let queued = 0;
  const inFlight = new Set();
  const flush = async () => {
    if (queued === 0) return;
    const commit = batch.commit();
    batch = client.batch();
    queued = 0;
    inFlight.add(commit);
    commit.finally(() => inFlight.delete(commit)).catch(() => {});
    if (inFlight.size >= 4) await Promise.race(inFlight);
  };
  const write = async (path, fields, layout, role) => {
    batch.set(client.doc(path), fields);
    manifest.documents.push({path, layout, role});
    if (++queued === 300) await flush();
  };

  // What an application keeps beside the expiry: values of every type. The parity of
  // i says who has expired, hence i >> 1: both roles have all ratios.
  const payload = i => ({
    user: `u${next(1000)}`,
    count: 2n ** 60n + BigInt(i),
    small: i,
    ratio: [0.1, -0, NaN, Infinity, 1e300, 5e-324][(i >> 1) % 6],
    nested: {list: [1, 'zwei', null, {drei: true}], 'odd key.*/~': 'ü 😀', empty: {}, none: []},
    blob: Buffer.from([0, 255, i % 256]),
    place: new GeoPoint(48.1 + (i % 10), -11.5),
    friend: client.doc(`friends/f-${i % 7}`),
    seen: new Timestamp(1_700_000_000 + i, 123_456_000),
    nothing: null,
    vector: FieldValue.vector([1, i % 5, 0.5]),
  });
  const timestamp = micros => new Timestamp(Number(micros / 1_000_000n), Number(micros % 1_000_000n) * 1000);
  const text = micros => new Date(Number(micros / 1000n)).toISOString().replace('Z', `${String(micros % 1000n).padStart(3, '0')}Z`);

  const month = 30n * 24n * 3600n * 1_000_000n;
  const hour = 3_600_000_000n;
  const shards = [...(o.shardValues ?? []), ...(o.shardNumbers ?? [])];
  const layouts = {
    generation: (id, at) => ({expiry_key: expiryKey(o.generation, shardOf(id, o.shards), text(at))}),
    sharded: (id, at) => ({expiry_key: expiryKey(0, shardOf(id, o.shards), text(at))}),
    timestamp: (id, at) => ({expires: timestamp(at)}),
    'sharded-timestamp': (id, at) => ({expires: timestamp(at), shard: shards[shardOf(id, shards.length)]}),
    group: (id, at) => ({expires: timestamp(at)}),
  };
  const names = Object.keys(layouts);
  for (let i = 0; i < o.documents; i++) {
    const layout = names[i % names.length];
    const n = Math.floor(i / names.length);
    const ids = [`s-${n}`, `with space ${n}`, `${n}`, `qu'o"te%2F?#\\ ${n}`, `ünï.cöde~ 会话 😀 ${n}`, `${n} ${'long '.repeat(20)}`,
      `...${n}`, `__id${n + 1}__`, `\`*[]\n\u0001 ${n}`, `e\u0301 ${n}`, ` ${n}`];
    const pair = n >> 1; // again, both roles have all ids and parents
    const id = pair % 97 === 96 ? `${n} `.padEnd(1500, 'x') /* the most */ : ids[pair % ids.length];
    const expired = n % 2 === 0;
    const ago = BigInt(next(1 << 30)) * 2000n + BigInt(next(2000)); // up to 24 days, in microseconds
    const at = expired ? now - 1n - (ago % month) : now + hour + (ago % month);
    const above = layout === 'group' ? `parents/p${String(pair % 50).padStart(2, '0')}/` : '';
    await write(`${above}${o.collections[layout]}/${id}`, {...layouts[layout](id, at), ...payload(n)}, layout, expired ? 'expired' : 'live');
  }
  // By-standers, which no sweep may touch.
  const past = now - month / 2n;
  for (let i = 0; i < 50; i++) {
    const parent = `parents/p${String(i).padStart(2, '0')}`;
    await write(parent, {name: `parent ${i}`, expires: timestamp(past), expiry_key: 'none'}, '', 'parent');
    for (const layout of names) {
      const collection = layout === 'group' ? `${parent}/${o.collections.group}` : o.collections[layout];
      const fields = layouts[layout](`x-${i}`, past);
      await write(`${collection}/never-${i}`, payload(i), layout, 'no expiry');
      await write(`${collection}/null-${i}`, {...fields, ...payload(i), expires: null, expiry_key: null}, layout, 'no expiry');
      await write(`${o.collections[layout]}Archive/a-${i}`, {...fields, ...payload(i)}, layout, 'other collection');
      // Of the same name elsewhere, where only a group would look, and below
      // documents that go.
      if (layout !== 'group') {
        await write(`elsewhere/e-${i}/${o.collections[layout]}/s-${i}`, {...fields, ...payload(i)}, layout, 'elsewhere');
        await write(`${o.collections[layout]}/s-0/below/b-${i}`, {...fields, ...payload(i)}, layout, 'elsewhere');
      }
    }
  }
  await flush();
  await Promise.all(inFlight);
  process.stdout.write(JSON.stringify(manifest) + '\n');
}

await main(JSON.parse(process.argv[2]));
