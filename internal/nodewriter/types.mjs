// Keeps entities with properties of every type that there is, by Google's own client, and compares all that it
// reads with what it has read before: for tests of what an archive gives back. Each line of input is a command in
// JSON; it answers each with a line of JSON.
//
// Usage: node types.mjs '{"mode": "native", "project": "p", "target": "things", "shards": 4}'

import writer from '../../writers/node/index.js';
import {answer} from './commands.mjs';
import {inChunks, insist, text} from './sessions.mjs';

const o = JSON.parse(process.argv[2]);

const kind = 'Thing';
const property = 'expiry_key';
const hour = 3600_000;
const all = list => Object.fromEntries(list.map((value, i) => [`v${i}`, value]));

// Which values the i-th entity has: every twentieth has all, the others three. The emulators index everything,
// in little memory.
function some(i, values) {
  const names = Object.keys(values);
  if (i % 20 === 0) return values;
  return Object.fromEntries([i, i * 7 + 3, i * 11 + 5].map(n => names[n % names.length]).map(name => [name, values[name]]));
}

const texts = ['', ' ', 'plain', 'ü 😀 𝒳 \u{10ffff}', '\u0000\u0001\u2028 <&> "\\/', 'é', '\ufeff', 'Infinity', '5'];
const long = `${'long '.repeat(2000)}😀`;
const integers = ['0', '-1', '9007199254740993', '-9007199254740993', '9223372036854775807', '-9223372036854775808'];
const doubles = [-0, NaN, Infinity, -Infinity, 0.1, -1e300, 5e-324, 2 ** 60, Number.MAX_VALUE];
const bytes = [Buffer.alloc(0), Buffer.from([0, 255, 128, 10]), Buffer.from('text')];
// Seconds and microseconds: the earliest, the latest, before 1970.
const instants = [[-62135596800, 0], [253402300799, 999_999], [-1, 1], [1_700_000_000, 123_456], [0, 0]];
const points = [[90, 180], [-90, -180], [48.137, -11.5], [-0, 0]];

// Names with all that a separator might be. In native mode a slash is none of them.
const idOf = i => [`a!${i}`, `~${i}`, `__id${i + 1}__`, `sé 😀 ${i}`, `t-${i}`, `"${i}"\\`, `%2F ${i}.`, `${i}`,
  `${'n'.repeat(1000)}${i}`, `!~${i}~!`, o.mode === 'native' ? `|${i}` : `a/${i}/!`][i % 11];

class Native {
  #sdk;
  #client;

  static async open(project) {
    const opened = new Native();
    opened.#sdk = await import('@google-cloud/firestore');
    opened.#client = new opened.#sdk.Firestore({projectId: project, useBigInt: true});
    return opened;
  }

  record(target) {
    return async () => (await this.#client.doc(`ReaperTarget/${target}`).get()).data() ?? null;
  }

  #values() {
    const {FieldValue, GeoPoint, Timestamp} = this.#sdk;
    return {
      ...all([...texts, long, ...integers.map(BigInt), ...doubles, ...bytes, true, false, null]),
      ...Object.fromEntries(instants.map(([s, micros], i) => [`at ${i}`, new Timestamp(s, micros * 1000)])),
      ...Object.fromEntries(points.map(([a, b], i) => [`point ${i}`, new GeoPoint(a, b)])),
      reference: this.#client.doc('a!/~b/c d/😀'),
      numbered: this.#client.doc('a/__id7__'),
      map: {a: {b: {c: [1n, {d: [null, -0, NaN], e: {}}, Buffer.from([0])]}}, 'odd key.*/~`': '😀'},
      empty: {},
      none: [],
      list: [1n, 2.5, 'x', null, true, {inner: []}, new Timestamp(1, 1000), new GeoPoint(1, 2)],
      vector: FieldValue.vector([1, -0, 0.5, 5e-324]),
      vectors: {inner: FieldValue.vector([2])},
      'a.b`c\\d/😀': 'a name of a field',
      ' ': 1n,
    };
  }

  #doc(i, id) {
    return this.#client.doc(i % 7 === 0 && i > 0 ? `p!/~x/${kind}/${id}` : `${kind}/${id}`);
  }

  async put(entities) { // {i, id, key, data}
    const values = this.#values();
    await inChunks(entities, 100, 4, chunk => insist(async () => {
      const batch = this.#client.batch();
      for (const {i, id, key, data} of chunk) {
        const ref = data ? this.#client.doc(`${kind}/${id}`) : this.#doc(i, id);
        batch.set(ref, {...(data ?? some(i, values)), [property]: key});
      }
      await batch.commit();
    }));
  }

  async remove(ids) {
    await inChunks(ids, 100, 4, chunk => insist(async () => {
      const batch = this.#client.batch();
      for (const id of chunk) batch.delete(this.#client.doc(`${kind}/${id}`));
      await batch.commit();
    }));
  }

  // Yields all entities: their paths, keys, a mark, and all the rest as a text, as the client has it and as it came.
  async *all() {
    for (let last; ;) {
      let query = this.#client.collectionGroup(kind).orderBy('__name__').limit(400);
      if (last !== undefined) query = query.startAfter(last);
      const {docs} = await insist(() => query.get());
      for (const doc of docs) {
        const {[property]: key, ...rest} = doc.data();
        const {[property]: _, ...raw} = doc._fieldsProto;
        yield {path: doc.ref.path, id: doc.id, key, mark: rest.mark, rest: `${text(rest)} ${text(raw)}`};
      }
      if (docs.length < 400) return;
      last = docs.at(-1);
    }
  }
}

class Datastore {
  #client;
  #raw; // the same client's lower layer, which shows index flags and whole instants
  #project;

  static async open(project) {
    const opened = new Datastore();
    const {Datastore: Client, v1} = await import('@google-cloud/datastore');
    opened.#project = project;
    opened.#client = new Client({projectId: project});
    opened.#raw = new v1.DatastoreClient(opened.#client.options);
    return opened;
  }

  record(target) {
    return async () => (await this.#client.get(this.#client.key(['ReaperTarget', target])))[0] ?? null;
  }

  #values() {
    const client = this.#client;
    return {
      ...all([...texts, ...integers.map(n => client.int(n)), ...doubles.map(n => client.double(n)), client.double(2), ...bytes,
        true, false, null]),
      ...Object.fromEntries(points.map(([latitude, longitude], i) => [`point ${i}`, client.geoPoint({latitude, longitude})])),
      long,
      at: new Date(-1),
      reference: client.key({namespace: 'other_1', path: ['A!', '~b', 'C d', client.int('9007199254740993'), 'E', '😀/']}),
      map: {a: {b: {c: [client.int(1), {d: [null, client.double(-0)], e: {}}, Buffer.from([0])]}}, 'odd key*/~`': '😀'},
      empty: {},
      none: [],
      list: [client.int(1), client.double(2.5), 'x', null, true, {inner: []}, new Date(1), client.key(['A', 'b'])],
      excluded: 'in no index',
      'excluded list': ['a', client.int(2), {b: 'c'}],
      ' a`b\\c/😀': 'a name of a property',
    };
  }

  // Values that only the lower layer writes.
  #rawValues() {
    const partitionId = {projectId: this.#project, namespaceId: 'eu'};
    return {
      ...Object.fromEntries(instants.map(([seconds, micros], i) => [`at ${i}`,
        {timestampValue: {seconds, nanos: micros * 1000}, excludeFromIndexes: i % 2 === 1}])),
      'old text': {stringValue: 'with a meaning', meaning: 15, excludeFromIndexes: true},
      keyed: {entityValue: {key: {partitionId, path: [{kind: 'Inner', id: '7'}]}, properties: {a: {nullValue: 'NULL_VALUE'},
        b: {stringValue: '~', excludeFromIndexes: true}}}},
      'keyed list': {arrayValue: {values: [{entityValue: {key: {partitionId, path: [{kind: 'Inner', name: '!'}]}, properties: {}}},
        {integerValue: '5', excludeFromIndexes: true}, {nullValue: 'NULL_VALUE'}]}},
      partial: {keyValue: {partitionId, path: [{kind: 'A', name: 'b'}, {kind: 'C', id: '1'}]}},
      zero: {doubleValue: -0, excludeFromIndexes: true},
      nothing: {nullValue: 'NULL_VALUE', excludeFromIndexes: true},
    };
  }

  #key(i, id) {
    const numeric = /^__id([0-9]+)__$/.exec(id);
    const own = [kind, numeric ? this.#client.int(numeric[1]) : id];
    return this.#client.key({namespace: i % 3 === 1 ? 'eu' : undefined, path: i % 7 === 0 && i > 0 ? ['P!', '~x/', ...own] : own});
  }

  #saved(i, id, key) {
    const data = {...some(i, this.#values()), [property]: key};
    const excluded = ['excluded', 'excluded list[]', 'excluded list[].b', 'long', ...(i % 2 ? ['v0', 'at', 'reference'] : ['map', 'list[]'])];
    return {key: this.#key(i, id), data, excludeFromIndexes: excluded.filter(path => path.split(/[.[]/)[0] in data)};
  }

  #rawly(i, id, key) {
    const {namespace, path} = this.#key(i, id);
    const parts = [];
    for (let n = 0; n < path.length; n += 2) {
      parts.push({kind: path[n], ...(typeof path[n + 1] === 'object' ? {id: path[n + 1].value} : {name: path[n + 1]})});
    }
    const partitionId = {projectId: this.#project, ...(namespace ? {namespaceId: namespace} : {})};
    const properties = {...(i % 20 === 1 ? this.#rawValues() : some(i % 20, this.#rawValues())), [property]: {stringValue: key}};
    return {upsert: {key: {partitionId, path: parts}, properties}};
  }

  async put(entities) {
    const marked = entities.filter(({data}) => data);
    const raw = entities.filter(({i, data}) => !data && i % 5 === 1);
    const saved = entities.filter(({i, data}) => !data && i % 5 !== 1);
    await inChunks(marked, 100, 4, chunk => insist(() => this.#client.save(chunk.map(({id, key, data}) =>
      ({key: this.#client.key([kind, id]), data: {...data, [property]: key}, excludeFromIndexes: ['pad']})))));
    await inChunks(saved, 100, 4, chunk => insist(() => this.#client.save(chunk.map(({i, id, key}) => this.#saved(i, id, key)))));
    await inChunks(raw, 100, 4, chunk => insist(() => this.#raw.commit({projectId: this.#project, mode: 'NON_TRANSACTIONAL',
      mutations: chunk.map(({i, id, key}) => this.#rawly(i, id, key))})));
  }

  async remove(ids) {
    await inChunks(ids, 100, 4, chunk => insist(() => this.#client.delete(chunk.map(id => this.#client.key([kind, id])))));
  }

  async *all() {
    for (const namespaceId of ['', 'eu']) {
      for (let startCursor; ;) {
        const [{batch}] = await insist(() => this.#raw.runQuery({projectId: this.#project,
          partitionId: {projectId: this.#project, namespaceId}, query: {kind: [{name: kind}], limit: {value: 400},
            order: [{property: {name: '__key__'}}], ...(startCursor ? {startCursor} : {})}}));
        for (const {entity} of batch.entityResults) {
          const {[property]: key, ...rest} = entity.properties;
          const path = `${namespaceId}|${entity.key.path.map(({kind, id, name}) => `${kind}:${id ?? JSON.stringify(name)}`).join('/')}`;
          const last = entity.key.path.at(-1);
          yield {path, id: last.name ?? `__id${last.id}__`, key: key?.stringValue, mark: rest.mark?.stringValue, rest: text(rest)};
        }
        if (batch.entityResults.length === 0 || batch.moreResults === 'NO_MORE_RESULTS') break;
        startCursor = batch.endCursor;
      }
    }
  }
}

const open = project => (o.mode === 'native' ? Native : Datastore).open(project);
const db = await open(o.project);
const few = list => ({n: list.length, few: list.slice(0, 5).map(line => line.slice(0, 2000))});

const copies = new Map(); // what was read, by name
const isLive = ({key}, now) => writer.parse(key).expires.getTime() > now;

let stamps = null;

async function stamp() {
  stamps ??= writer.follow(db.record(o.target), {shards: o.shards});
  await stamps.refresh();
  return (id, at) => stamps.key(id, new Date(at));
}

const commands = {
  // Writes n entities with values of every type, of which two thirds have expired.
  async fill({n}) {
    const [key, now, entities] = [await stamp(), Date.now(), []];
    let expired = 0;
    for (let i = 0; i < n; i++) {
      const at = i % 3 === 2 ? now + hour + i : now - 60_000 - i * 977;
      if (at < now) expired++;
      entities.push({i, id: idOf(i), key: key(idOf(i), at)});
    }
    await db.put(entities);
    return {expired};
  },

  // Reads everything, and keeps it under a name.
  async read({as, project}) {
    const from = project ? await open(project) : db;
    const found = new Map();
    for await (const one of from.all()) {
      if (found.has(one.path)) throw new Error(`${one.path} was read twice`);
      found.set(one.path, one);
    }
    copies.set(as, found);
    return {n: found.size};
  },

  // Compares two copies, by how the later one came to be. By a sweep: what had expired is gone, and nothing else.
  // By a restore: that is back, and expires between two instants. By a load: in another project, with the same instants.
  async compare({was, is, by, from, until}) {
    const [before, after, wrong] = [copies.get(was), copies.get(is), []];
    for (const [path, one] of before) {
      const other = after.get(path);
      const live = isLive(one, Date.now());
      if (by === 'sweep' && !live) {
        if (other) wrong.push(`${path} has expired, and is there`);
        continue;
      }
      if (!other) {
        wrong.push(`${path} is gone`);
        continue;
      }
      if (one.rest !== other.rest) wrong.push(`${path} was ${one.rest} and is ${other.rest}`);
      const expires = writer.parse(other.key).expires.getTime();
      if (by === 'restore' && !live) {
        if (expires < from || expires > until) wrong.push(`${path} expires at ${new Date(expires).toISOString()}`);
      } else if (by === 'load' ? expires !== writer.parse(one.key).expires.getTime() : one.key !== other.key) {
        wrong.push(`${path} had ${one.key} and has ${other.key}`);
      }
    }
    for (const path of after.keys()) if (!before.has(path)) wrong.push(`${path} was not there`);
    return {wrong: few(wrong)};
  },

  // Writes entities that hold a mark, due already or in an hour, with so many bytes of something else.
  async put({marks, due, pad}) {
    const key = await stamp();
    const at = Date.now() + (due ? -60_000 : hour);
    await db.put(Object.entries(marks).map(([id, mark]) =>
      ({id, key: key(id, at), data: {mark, ...(pad ? {pad: 'p'.repeat(pad)} : {})}})));
  },

  remove: ({ids}) => db.remove(ids),

  // Returns the marks of all entities by their ids.
  async marks() {
    const marks = {};
    for await (const {id, mark} of db.all()) marks[id] = mark;
    return {marks};
  },
};

await answer(commands);
