// Sessions as an application keeps them, with Google's own clients: properties of every type,
// a time of creation, and an expiry key or none. Both classes have the same methods.
//
// A session is {id, like, created, version, key}: `like` is the number whose payload it has, so
// that a new session can be compared with an old one; `version` is different in each write. An id
// __id7__ is numeric: in Datastore mode it is the number 7.

const property = 'expiry_key';

// Which properties session i has: every twentieth has all, the others two. The emulators index
// everything, in little memory.
function some(i, all) {
  const names = Object.keys(all);
  if (i % 20 === 0) return all;
  return Object.fromEntries([names[i % names.length], names[(i * 7 + 3) % names.length]].map(name => [name, all[name]]));
}

const ratios = [0.1, -0, NaN, Infinity, 1e300, 5e-324];

// Everything that a client reads as one text: two that are equal are the same value, of the same
// type. Of objects it goes by the class, and by the own properties in their order by name.
export function text(value) {
  if (value === undefined || value === null) return String(value);
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'number') return Object.is(value, -0) ? '-0' : String(value);
  if (typeof value !== 'object') return JSON.stringify(value);
  if (Buffer.isBuffer(value) || value instanceof Uint8Array) return `bytes ${Buffer.from(value).toString('hex')}`;
  if (Array.isArray(value)) return `[${value.map(text).join()}]`;
  if (typeof value.path === 'string' && value.firestore) return `reference ${value.path}`;
  if (typeof value.toNumber === 'function') return String(value); // a Long
  const name = value.constructor?.name ?? 'Object';
  const members = Object.keys(value).sort().map(key => `${JSON.stringify(key)}:${text(value[key])}`);
  return `${name === 'Object' ? '' : name}{${members.join()}}`;
}

// Tries again what another transaction or a busy emulator refused. All writes here may be repeated.
export async function insist(write) {
  for (let n = 1; ; n++) {
    try {
      return await write();
    } catch (error) {
      const passes = typeof error.code === 'number' && error.code !== 3 && error.code !== 5; // invalid, not found
      if (!passes || n === 200) throw error;
    }
    await new Promise(resolve => setTimeout(resolve, 10 * Math.min(n, 20)));
  }
}

// Runs a function for each chunk of a list, a few at the same time.
export async function inChunks(list, size, atOnce, run) {
  let next = 0;
  await Promise.all(Array.from({length: atOnce}, async () => {
    while (next < list.length) {
      const from = next;
      next += size;
      await run(list.slice(from, from + size));
    }
  }));
}

class Native {
  #client;
  #sdk;
  #sessions;

  constructor(sdk, project) {
    this.#sdk = sdk;
    this.#client = new sdk.Firestore({projectId: project, useBigInt: true});
    this.#sessions = this.#client.collection('Session');
  }

  record(target) {
    const record = this.#client.doc(`ReaperTarget/${target}`);
    return async () => (await record.get()).data() ?? null;
  }

  #fields({like, created, version, key}) {
    const {FieldValue, GeoPoint, Timestamp} = this.#sdk;
    const ms = created.getTime();
    return {
      ...some(like, {
        count: 2n ** 60n + BigInt(like),
        ratio: ratios[like % ratios.length],
        big: 2 ** 60, // a double
        nested: {list: [1, 'zwei', null, {drei: true}], 'odd key.*/~': 'ü 😀', empty: {}, none: [], at: new Timestamp(like, 1000)},
        blob: Buffer.from([0, 255, like % 256]),
        place: new GeoPoint(48.1 + (like % 10), -11.5),
        friend: this.#client.doc(`friends/f-${like % 7}`),
        seen: new Timestamp(1_700_000_000 + like, 123_456_789),
        nothing: null,
        yes: true,
        list: [1n, 'x', null, 2.5, Buffer.from('b')],
        vector: FieldValue.vector([1, like % 5, 0.5]),
      }),
      like: BigInt(like),
      version,
      created: new Timestamp(Math.floor(ms / 1000), (ms % 1000) * 1_000_000),
      ...(key === undefined ? {} : {[property]: key}),
    };
  }

  async putAll(sessions) {
    await inChunks(sessions, 300, 4, chunk => insist(async () => {
      const batch = this.#client.batch();
      for (const session of chunk) batch.set(this.#sessions.doc(session.id), this.#fields(session));
      await batch.commit();
    }));
  }

  // An old writer's update leaves a key as it is. It returns false if there is no session.
  async update(session) {
    const {created, version, [property]: key} = this.#fields(session);
    const change = {created, version, ...(key === undefined ? {} : {[property]: key})};
    try {
      await insist(() => this.#sessions.doc(session.id).update(change));
      return true;
    } catch (error) {
      if (error.code === 5) return false;
      throw error;
    }
  }

  async key(id) {
    return (await this.#sessions.doc(id).get()).get(property);
  }

  // Yields all sessions, in pages.
  async *all() {
    for (let last; ;) {
      let query = this.#sessions.orderBy('__name__').limit(2000);
      if (last !== undefined) query = query.startAfter(last);
      const {docs} = await query.get();
      for (const doc of docs) {
        const {[property]: key, created, version, like, ...rest} = doc.data();
        const instant = BigInt(created.seconds) * 1000n + BigInt(created.nanoseconds) / 1_000_000n;
        yield {id: doc.id, key, created: Number(instant), createdAs: text(created), version, like: Number(like), rest: text(rest)};
      }
      if (docs.length < 2000) return;
      last = docs.at(-1);
    }
  }
}

class Datastore {
  #client;
  #raw; // the same client's lower layer, which shows index flags and whole instants

  constructor({Datastore, v1}, project) {
    this.#client = new Datastore({projectId: project});
    this.#raw = new v1.DatastoreClient(this.#client.options);
  }

  record(target) {
    const record = this.#client.key(['ReaperTarget', target]);
    return async () => (await this.#client.get(record))[0] ?? null;
  }

  #key(id) {
    const numeric = /^__id([0-9]+)__$/.exec(id);
    return this.#client.key(['Session', numeric ? this.#client.int(numeric[1]) : id]);
  }

  #entity({id, like, created, version, key}) {
    const client = this.#client;
    const data = {
      ...some(like, {
        count: client.int(String(2n ** 60n + BigInt(like))),
        ratio: client.double(ratios[like % ratios.length]),
        whole: client.double(2),
        nested: {list: [client.int(1), 'zwei', null, {drei: true}], 'odd key*/~': 'ü 😀', empty: {}, none: [], at: new Date(like)},
        blob: Buffer.from([0, 255, like % 256]),
        place: client.geoPoint({latitude: 48.1 + (like % 10), longitude: -11.5}),
        friend: client.key(['Friend', `f-${like % 7}`, 'Name', client.int(7)]),
        seen: new Date(1_700_000_000_123 + like),
        nothing: null,
        yes: true,
        list: [client.int(1), 'x', null, client.double(2.5), Buffer.from('b')],
        long: 'x'.repeat(1400),
      }),
      like: client.int(like),
      version,
      created,
      ...(key === undefined ? {} : {[property]: key}),
    };
    const excluded = [['created', 'blob', 'nested.list[]'], ['nested', 'list[]'], ['long', 'seen', 'nothing'], []][like % 4];
    return {key: this.#key(id), data, excludeFromIndexes: excluded.filter(path => path.split(/[.[]/)[0] in data)};
  }

  async putAll(sessions) {
    await inChunks(sessions, 400, 4, chunk => insist(() => this.#client.save(chunk.map(session => this.#entity(session)))));
  }

  // An old writer's read-modify-write puts a key back as it was. It returns false if there is no session.
  update(session) {
    return insist(async () => {
      const transaction = this.#client.transaction();
      await transaction.run();
      try {
        const [found] = await transaction.get(this.#key(session.id), {wrapNumbers: true});
        if (found === undefined) return false;
        transaction.save(this.#entity({...session, key: session.key ?? found[property]}));
        await transaction.commit();
        return true;
      } catch (error) {
        await transaction.rollback().catch(() => {});
        throw error;
      }
    });
  }

  async key(id) {
    return (await this.#client.get(this.#key(id), {wrapNumbers: true}))[0]?.[property];
  }

  // Yields all sessions, in the pages that the service makes.
  async *all() {
    const query = {kind: [{name: 'Session'}], order: [{property: {name: '__key__'}}]};
    for (let start; ;) {
      const [{batch}] = await insist(() => this.#raw.runQuery({projectId: this.#client.options.projectId,
        partitionId: {projectId: this.#client.options.projectId}, query: {...query, ...(start ? {startCursor: start} : {})}}));
      for (const {entity} of batch.entityResults) {
        const {[property]: key, created, version, like, ...rest} = entity.properties;
        const {id, name} = entity.key.path.at(-1);
        const {seconds, nanos} = created.timestampValue;
        yield {id: name ?? `__id${id}__`, key: key?.stringValue, unindexed: key?.excludeFromIndexes, version: version.stringValue,
          like: Number(like.integerValue), created: Number(seconds) * 1000 + nanos / 1e6, createdAs: text(created), rest: text(rest)};
      }
      if (batch.entityResults.length === 0 || batch.moreResults === 'NO_MORE_RESULTS') return;
      start = batch.endCursor;
    }
  }
}

// The sessions of a database, in mode native or datastore. It loads the client that it needs: that
// takes a while.
export async function open(mode, project) {
  return mode === 'native' ? new Native(await import('@google-cloud/firestore'), project)
    : new Datastore(await import('@google-cloud/datastore'), project);
}
