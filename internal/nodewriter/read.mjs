// Reads a sharded kind or collection by @reaper-ttl/writer/read and Google's own clients, page
// by page: one for each line of input. It prints each page as a line of JSON, with the names
// in it and whether there may be more, or the error.
//
// Usage: node read.mjs '{"mode": "native", "project": "p", "kind": "Event", …}' (see ReadOptions in
// reader.go).

import {createInterface} from 'node:readline';
import sharded from '../../writers/node/read.js';

// Names as Go quotes them.
const quoted = name => JSON.stringify(name).replaceAll('\\u00', '\\x');
const names = key => `${key.parent ? names(key.parent) : ''}/${key.kind}:${key.id ? `#${key.id}` : quoted(key.name)}`;

async function store(o) { // loads the client that it needs: that takes a while
  const client = {projectId: o.project, ...(o.database ? {databaseId: o.database} : {})};
  const fields = {shard: o.shard, time: o.time};
  if (o.mode === 'native') {
    const {Firestore, Timestamp} = await import('@google-cloud/firestore');
    const firestore = new Firestore(client);
    let base = o.group ? firestore.collectionGroup(o.kind) : firestore.collection(o.kind);
    for (const [name, value] of Object.entries(o.where ?? {})) base = base.where(name, '==', value);
    if (o.order) base = base.orderBy(o.order);
    return [sharded.fromFirestore(base, {...fields, Timestamp}), doc => doc.ref.path];
  }
  const {Datastore, PropertyFilter} = await import('@google-cloud/datastore');
  const datastore = new Datastore({...client, namespace: o.namespace || undefined});
  const ancestor = o.ancestor ? datastore.key(o.ancestor) : undefined;
  const {kind, where = {}} = o;
  const open = sharded.fromDatastore(datastore, {...fields, kind, ancestor, where, PropertyFilter});
  return [open, entity => names(entity[datastore.KEY])];
}

async function main(o) {
  const {newest, limit, perQuery, page, from, until} = o;
  const values = o.values ?? sharded.numbers(o.shards);
  let opened;
  let after = o.after ?? null;
  for await (const line of createInterface({input: process.stdin})) {
    if (line !== '') throw new Error(`unexpected input ${line}`);
    try {
      const [open, name] = opened ??= await store(o);
      const read = await sharded.readPage(open, {values, newest, limit, perQuery, page, from, until, after});
      after = read.next;
      console.log(JSON.stringify({names: read.items.map(name), more: after !== null}));
    } catch (error) {
      console.log(JSON.stringify({error: `${error.name}: ${error.message}`}));
    }
  }
}

await main(JSON.parse(process.argv[2]));
