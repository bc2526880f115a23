// Writes entities into a Datastore-mode database with Google's own Node
// client, with expiry keys that it builds by itself from docs/key-format.md.
// It shares no code with the Go packages: that is its purpose.
//
// Usage: node datastore.mjs '{"project": "p", "vectors": "docs/key-vectors.json", "entities": 20000, …}'
// (see Options in nodewriter.go). It prints a JSON manifest of what it wrote.

import {Datastore} from '@google-cloud/datastore';
import {check, expiryKey, shardOf} from './key.mjs';

async function main(o) {
  const checked = check(o.vectors);
  const client = new Datastore({projectId: o.project, ...(o.database ? {databaseId: o.database} : {})});
  const now = Date.parse(o.now);
  const manifest = {vectors: checked, entities: []};
  let random = 42; // a generator of its own, so that every run writes the same
  const next = n => (random = (Math.imul(random, 1664525) + 1013904223) >>> 0) % n;

  let pending = [];
  const inFlight = new Set();
  const flush = async () => {
    if (pending.length === 0) return;
    const save = client.save(pending);
    pending = [];
    inFlight.add(save);
    save.finally(() => inFlight.delete(save)).catch(() => {});
    if (inFlight.size >= 4) await Promise.race(inFlight);
  };
  // write queues an entity; path alternates kinds and identifiers, of which a
  // number is a number and a text a name.
  const write = async (namespace, path, expires, role) => {
    const id = path.at(-1);
    const property = {};
    if (expires !== undefined) {
      property[o.property] = expires && expiryKey(o.generation, shardOf(id, o.shards), expires);
    }
    const key = client.key({
      namespace: namespace || undefined,
      path: path.map((p, i) => (i % 2 === 1 && typeof p === 'bigint' ? client.int(String(p)) : p)),
    });
    pending.push({key, data: {...property, user: `u${next(1000)}`, text: 'x'.repeat(50)}, excludeFromIndexes: ['user', 'text']});
    manifest.entities.push({
      namespace,
      path: path.map((p, i) => (i % 2 === 0 ? p : typeof p === 'bigint' ? {id: String(p)} : {name: p})),
      expiry: property[o.property] ?? '',
      role,
    });
    if (pending.length === 500) await flush();
  };

  const month = 30 * 24 * 3600 * 1000;
  for (let i = 0; i < o.entities; i++) {
    const namespace = o.namespaces[i % o.namespaces.length];
    const expired = Math.floor(i / o.namespaces.length) % 2 === 0;
    const at = new Date(expired ? now - next(month) : now + 3600_000 + next(month)).toISOString();
    const own = [`s-${i}`, BigInt(i + 1), `${i}`, `ses/sion é ${i}`, 2n ** 60n + BigInt(i)][i % 5];
    const parent = [[], ['User', BigInt((i % 97) + 1)], ['Org', `o/${i % 7}`, 'User', `${i % 11}`]][Math.floor(i / 5) % 3];
    await write(namespace, [...parent, o.kind, own], at, expired ? 'expired' : 'live');
  }
  const past = new Date(now - month).toISOString();
  for (let i = 0; i < 50; i++) {
    for (const namespace of o.namespaces) {
      await write(namespace, [`${o.kind}Archive`, `a-${i}`], past, 'other kind');
      await write(namespace, [o.kind, `never-${i}`], undefined, 'no expiry');
      await write(namespace, [o.kind, `null-${i}`], null, 'no expiry');
    }
    await write(o.elsewhere, [o.kind, `s-${i}`], past, 'other namespace');
  }
  await flush();
  await Promise.all(inFlight);
  process.stdout.write(JSON.stringify(manifest) + '\n');
}

await main(JSON.parse(process.argv[2]));
