// Creates and extends sessions while their target moves to another layout, and at the same time
// reads all of them again and again, by the sharded reader of @reaper-ttl/writer. Each line of input is
// a command in JSON; it answers each with a line of JSON.
//
// Usage: node migrant.mjs '{"mode": "native", "project": "p", "target": "sessions"}'

import {setTimeout as sleep} from 'node:timers/promises';
import writer from '../../writers/node/index.js';
import sharded from '../../writers/node/read.js';
import {answer} from './commands.mjs';
import {inChunks, insist} from './sessions.mjs';

const o = JSON.parse(process.argv[2]);
const second = 1000;
const hour = 3600 * second;

async function openNative() {
  const {Firestore, Timestamp} = await import('@google-cloud/firestore');
  const client = new Firestore({projectId: o.project});
  const sessions = client.collection('Session');
  const record = client.doc(`ReaperTarget/${o.target}`);
  return {
    record: async () => (await record.get()).data() ?? null,
    reader: sharded.fromFirestore(sessions, {shard: 'shard', time: 'created', Timestamp}),
    name: doc => doc.id,
    instant: ms => Timestamp.fromMillis(ms),
    put: (id, fields) => sessions.doc(id).set(fields),
    async update(id, fields) { // leaves other fields as they are
      try {
        await sessions.doc(id).update(fields);
        return true;
      } catch (error) {
        if (error.code === 5) return false;
        throw error;
      }
    },
  };
}

async function openDatastore() {
  const {Datastore, PropertyFilter} = await import('@google-cloud/datastore');
  const client = new Datastore({projectId: o.project});
  const key = id => client.key(['Session', id]);
  return {
    record: async () => (await client.get(client.key(['ReaperTarget', o.target])))[0] ?? null,
    reader: sharded.fromDatastore(client, {kind: 'Session', shard: 'shard', time: 'created', PropertyFilter}),
    name: entity => entity[client.KEY].name,
    instant: ms => new Date(ms),
    put: (id, fields) => client.save({key: key(id), data: fields}),
    async update(id, fields) { // puts other properties back as they were
      const transaction = client.transaction();
      await transaction.run();
      try {
        const [found] = await transaction.get(key(id));
        if (found === undefined) {
          await transaction.rollback();
          return false;
        }
        transaction.save({key: key(id), data: {...found, ...fields}});
        await transaction.commit();
        return true;
      } catch (error) {
        await transaction.rollback().catch(() => {});
        throw error;
      }
    },
  };
}

const store = await (o.mode === 'native' ? openNative() : openDatastore());
const follower = writer.follow(store.record);

let stamps; // how a session says when it expires: see Stamps in migrant.go
let stopped = false;
const tasks = []; // run between two turns
const known = new Map(); // id to {expires}: until then at least it is there
const found = {turns: 0, passes: 0, pages: 0, gaps: [], between: [], twice: [], lost: []};

// Made for each try, since a key of a generation is good for a short time only.
function expiry(id, expires) {
  const fields = {};
  if (stamps.old === 'timestamp') fields.expires = store.instant(expires);
  if (stamps.old === 'key') fields.expires = writer.nurseryKey(id, new Date(expires), stamps.oldShards);
  if (stamps.key === 'nursery') fields.expiry_key = writer.nurseryKey(id, new Date(expires), stamps.shards);
  if (stamps.key === 'follow') fields.expiry_key = follower.key(id, new Date(expires));
  return fields;
}

async function create(id, ahead) {
  const now = Date.now();
  const fields = {user: 'u7', shard: 'ab'[id.length % 2], created: store.instant(now)};
  await insist(() => store.put(id, {...fields, ...expiry(id, now + ahead)}));
  known.set(id, {expires: now + ahead});
}

async function extend(id, expires) {
  const before = known.get(id);
  if (before === undefined) return;
  if (await insist(() => store.update(id, expiry(id, expires)))) {
    known.set(id, {expires});
    return;
  }
  if (Date.now() < before.expires) found.lost.push(id);
  known.delete(id);
}

async function write() {
  while (!stopped) {
    const n = ++found.turns;
    await create(`node-soon-${n}`, 4 * second);
    await create(`node-late-${n}`, hour);
    await create(`node-extended-${n}`, 6 * second);
    await extend(`node-extended-${n - 20}`, Date.now() + hour);
    for (const task of tasks.splice(0)) await task();
    await sleep(50 + known.size / 2); // where all is slow, there is not ever more to read
  }
}

// Between two turns.
const next = run => new Promise((done, fail) => tasks.push(() => run().then(done, fail)));

const waiting = []; // for passes

async function pass() {
  const before = new Map(known);
  const ids = new Set();
  for (let after = null; ;) {
    const from = after;
    const page = await insist(() => sharded.readPage(store.reader, {values: ['a', 'b'], limit: 100, perQuery: 1, after: from}));
    found.pages++;
    for (const item of page.items) {
      const id = store.name(item);
      if (ids.has(id)) found.twice.push(id);
      ids.add(id);
    }
    after = page.next;
    if (after === null) break;
  }
  const end = Date.now();
  for (const [id, {expires}] of before) { // what was there before the pass, and is so after it
    if (expires > end && known.has(id) && !ids.has(id)) found.gaps.push(id);
  }
  return ids;
}

async function read() {
  for (let one = new Set(), two = new Set(); !stopped;) {
    const ids = await pass();
    // What was there in the pass before the last one, and is there again, was there all the time.
    for (const id of one) if (ids.has(id) && !two.has(id)) found.between.push(id);
    [one, two] = [two, ids];
    found.passes++;
    for (const wait of waiting.splice(0)) wait();
    await sleep(100);
  }
}

let work = null;

const commands = {
  async start({stamps: s}) {
    stamps = s;
    await follower.refresh();
    work = Promise.all([write(), read()]).catch(error => {
      console.error(error.stack);
      process.exit(1);
    });
    await commands.turns({more: 1});
  },
  async turns({more}) {
    for (let n = 0; n < more; n++) await next(async () => {});
  },
  // Waits for passes that have not begun yet.
  async passes({more}) {
    for (let n = 0; n <= more; n++) await new Promise(resolve => waiting.push(resolve));
  },
  // From now on it stamps so, and it has stamped each live session so once.
  phase: ({stamps: s}) => next(async () => {
    stamps = s;
    await follower.refresh();
    await inChunks([...known], 1, 10, async ([[id, {expires}]]) => {
      if (expires > Date.now()) await extend(id, expires);
    });
  }),
  async stop() {
    stopped = true;
    await work;
    return {...found, expires: Object.fromEntries([...known].map(([id, {expires}]) => [id, expires]))};
  },
};

await answer(commands);
