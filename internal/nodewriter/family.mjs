// Keeps parents with three levels of children in a database, with Google's own client, for tests of
// `descendants: {mode: delete}`. Parents are of the kind `u`, and of each only its own process writes what
// lies below. Each line of input is a command in JSON; it answers each with a line of JSON.
//
// Usage: node family.mjs '{"mode": "native", "project": "p"}'

import {setTimeout as sleep} from 'node:timers/promises';
import {answer} from './commands.mjs';
import {inChunks, insist} from './sessions.mjs';

const o = JSON.parse(process.argv[2]);

const kinds = ['u', 'u2', 'u!', 't', 'n', 'm', 'l', 'late']; // all that it writes
const hour = 3600_000;
const shardOf = path => [...path].reduce((sum, c) => sum + c.codePointAt(0), 0) % 4;

// What an entity has: parents an expiry, the others their path alone.
const fields = (path, expires) => ({text: path, ...(expires ? {expires, shard: shardOf(path)} : {})});

class Native {
  #sdk;
  #client;

  static async open(project) {
    const opened = new Native();
    opened.#sdk = await import('@google-cloud/firestore');
    opened.#client = new opened.#sdk.Firestore({projectId: project});
    return opened;
  }

  async put(entities) { // [path, fields]
    await inChunks(entities, 300, 4, chunk => insist(async () => {
      const batch = this.#client.batch();
      for (const [path, data] of chunk) batch.set(this.#client.doc(path), data);
      await batch.commit();
    }));
  }

  // Changes a parent if it exists, by a function of its fields that returns the new ones, or null to delete it.
  // More is written with it. It returns whether the parent existed.
  change(path, to, more = []) {
    const doc = this.#client.doc(path);
    return insist(() => this.#client.runTransaction(async transaction => {
      const found = await transaction.get(doc);
      if (!found.exists) return false;
      const {expires, ...rest} = found.data();
      const changed = to({...rest, expires: expires.toDate()});
      if (changed === null) transaction.delete(doc);
      else transaction.set(doc, changed);
      for (const [path, data] of more) transaction.set(this.#client.doc(path), data);
      return true;
    }));
  }

  // Returns the paths of what is below a parent.
  async below(path) {
    const lists = await Promise.all(['n', 'm', 'l', 'late'].map(kind => insist(() => this.#client.collectionGroup(kind)
      .orderBy(this.#sdk.FieldPath.documentId()).startAfter(path).endBefore(`${path}\u0001`).select().get())));
    return new Set(lists.flatMap(({docs}) => docs.map(doc => doc.ref.path)));
  }

  // Returns the paths of all that may be below parents.
  async children() {
    const lists = await Promise.all(['n', 'm', 'l'].map(kind =>
      insist(() => this.#client.collectionGroup(kind).select().get())));
    return lists.flatMap(({docs}) => docs.map(doc => doc.ref.path));
  }

  // Returns all entities by path.
  async all() {
    const all = new Map();
    for (const kind of kinds) {
      const {docs} = await insist(() => this.#client.collectionGroup(kind).get());
      for (const doc of docs) {
        const {text, expires} = doc.data();
        all.set(doc.ref.path, {text, expires: expires?.toMillis()});
      }
    }
    return all;
  }

  // Does nothing but read a document: then it is connected.
  async connect() {
    await this.#client.doc('u/none').get();
  }

  recursiveDelete(path) {
    return this.#client.recursiveDelete(this.#client.doc(path));
  }
}

class Datastore {
  #client;

  static async open(project) {
    const opened = new Datastore();
    const sdk = await import('@google-cloud/datastore');
    opened.#client = new sdk.Datastore({projectId: project});
    return opened;
  }

  #key(path) {
    return this.#client.key(path.split('/'));
  }

  #path(key) {
    return `${key.parent ? `${this.#path(key.parent)}/` : ''}${key.kind}/${key.name}`;
  }

  async put(entities) {
    await inChunks(entities, 400, 4, chunk =>
      insist(() => this.#client.save(chunk.map(([path, data]) => ({key: this.#key(path), data})))));
  }

  change(path, to, more = []) {
    const key = this.#key(path);
    return insist(async () => {
      const transaction = this.#client.transaction();
      await transaction.run();
      try {
        const [found] = await transaction.get(key);
        const changed = found === undefined ? undefined : to({...found});
        if (changed === null) transaction.delete(key);
        else if (changed !== undefined) transaction.save({key, data: changed});
        if (changed !== undefined) for (const [path, data] of more) transaction.save({key: this.#key(path), data});
        await transaction.commit();
        return found !== undefined;
      } catch (error) {
        await transaction.rollback().catch(() => {});
        throw error;
      }
    });
  }

  async below(path) {
    const key = this.#key(path);
    const query = this.#client.createQuery().hasAncestor(key).select('__key__');
    const [found] = await insist(() => this.#client.runQuery(query));
    const paths = found.map(entity => this.#path(entity[this.#client.KEY]));
    return new Set(paths.filter(p => p !== path));
  }

  async children() {
    const [found] = await insist(() => this.#client.runQuery(this.#client.createQuery().select('__key__')));
    return found.map(entity => this.#path(entity[this.#client.KEY]));
  }

  async all() {
    const all = new Map();
    for (const kind of kinds) {
      const [found] = await insist(() => this.#client.runQuery(this.#client.createQuery(kind)));
      for (const entity of found) {
        all.set(this.#path(entity[this.#client.KEY]), {text: entity.text, expires: entity.expires?.getTime()});
      }
    }
    return all;
  }
}

const db = await (o.mode === 'native' ? Native : Datastore).open(o.project);

// What lies below a parent: n at the first level, below each of these m, and below some of these l. Below one
// the level between does not exist.
function bear(parent, count) {
  const paths = [`${parent}/n/missing/m/a`];
  for (let i = 0; paths.length < count; i++) {
    const n = `${parent}/n/${String(i).padStart(4, '0')}`;
    paths.push(n, `${n}/m/a`, `${n}/m/a/l/😀`, `${n}/m/b`);
  }
  return paths.slice(0, count);
}

// Names next to each other. Of each pair one is due and the other one is not.
const nextTo = ['2', '!', '~', '😀', '～', '-', '.x', '\u0001', ' '];
const roles = ['meddle', 'meddle', 'meddle', 'bear', 'quiet']; // of parents, in turn

const parents = []; // that are due
const others = new Map(); // what nobody may touch
const wrong = [];
// How often it did what in the middle: extended a parent, dropped it, renewed it, to live or to be due again.
const inMiddle = {extend: 0, drop: 0, renew: 0, again: 0};
let bears = 0;

// A parent is due, live, or dropped by its application. Of one that is not due, all that was below it then stays.
class Parent {
  state = 'due';
  stays = null;
  late = new Map(); // what was written below it after the first sweep began: true if the parent was written after it
  #expires = null;

  constructor(path, count, role) {
    Object.assign(this, {path, role, first: bear(path, count)});
  }

  get isDecided() {
    return this.role === 'quiet';
  }

  // Acts in the middle: if some of what was below it first are gone.
  async meddle(isAlone, left) {
    if (this.role === 'bear') return this.#bear(isAlone);
    if (left === this.first.length) return;
    this.role = 'quiet';
    const act = Object.keys(inMiddle).reduce((a, b) => (inMiddle[b] < inMiddle[a] ? b : a));
    inMiddle[act]++;
    const existed = act === 'extend' ? await this.#extend() : await db.change(this.path, () => null);
    const below = await db.below(this.path);
    if (!existed) { // then all was gone before it
      for (const path of below) wrong.push(`${path} was left below a parent that is gone`);
    }
    if (below.size === 0) inMiddle[act]--;
    if (act === 'renew') await this.#put(Date.now() + hour);
    if (act === 'again') await this.#put(Date.now() + 1000);
    if (act === 'renew' || act === 'extend' && existed) [this.state, this.stays] = ['live', below];
    if (act === 'drop' && existed) [this.state, this.stays] = ['dropped', below];
  }

  async #extend() {
    this.#expires = Date.now() + hour;
    return db.change(this.path, () => fields(this.path, new Date(this.#expires)));
  }

  async #put(expires) {
    this.#expires = expires;
    await db.put([[this.path, fields(this.path, new Date(expires))]]);
  }

  // Writes a child. While no process deletes, the parent is written with it, if it still exists: then whatever
  // looked before cannot delete it, and all that is below it by now must go before it.
  async #bear(isAlone) {
    const path = `${this.path}/late/${this.late.size}`;
    const child = [path, fields(path)];
    if (!isAlone) {
      await db.put([child]);
      this.late.set(path, false);
    } else if (await db.change(this.path, parent => ({...parent, text: this.path}), [child])) {
      this.late.set(path, true);
      for (const path of this.late.keys()) this.late.set(path, true);
      bears++;
    } else if (this.late.size === 0) { // below one that is gone
      await db.put([child]);
      this.late.set(path, false);
      this.role = 'quiet';
    }
    if (this.late.size > 20) this.role = 'quiet';
  }

  // Compares what is there, and removes what it knows of. It returns how many orphans it has.
  audit(all) {
    const is = all.get(this.path);
    all.delete(this.path);
    if (is?.expires !== (this.state === 'live' ? this.#expires : undefined)) {
      wrong.push(`${this.path} is ${this.state}, and is there with ${is?.expires}`);
    }
    let orphans = 0;
    const here = [...all.keys()].filter(path => path.startsWith(`${this.path}/`));
    for (const path of here) {
      all.delete(path);
      if (is === undefined) orphans++;
      const mayStay = this.state === 'due' ? this.late.get(path) === false : this.stays.has(path);
      if (!mayStay) wrong.push(`${path} is left below ${this.path}`);
    }
    for (const path of this.stays ?? []) {
      if (!here.includes(path)) wrong.push(`${path} is gone, which was below ${this.path} when it was ${this.state}`);
    }
    return orphans;
  }
}

// Acts on all parents whose turn it is.
async function meddleWithAll(isAlone) {
  const open = parents.filter(parent => !parent.isDecided);
  const left = new Map();
  for (const path of await db.children()) {
    const [kind, name, below] = path.split('/');
    const parent = `${kind}/${name}`;
    if (below !== undefined && below !== 'late') left.set(parent, (left.get(parent) ?? 0) + 1);
  }
  const most = acts() + (isAlone ? 2 : Infinity); // while nobody is at work all that was begun stays in the middle
  await inChunks(open, 1, 3, async ([parent]) => {
    if (parent.role === 'bear' || acts() < most) await parent.meddle(isAlone, left.get(parent.path) ?? 0);
  });
}

const acts = () => Object.values(inMiddle).reduce((a, b) => a + b);

let connected = null; // for recursiveDelete
let failed = null;
let stopped = true;
let loop = Promise.resolve();

const few = list => ({n: list.length, few: list.slice(0, 10)});

const commands = {
  // Writes so many parents that are due, with so many children each, the first one with as many as huge says, and
  // some that are not.
  async fill({n, children, huge}) {
    const entities = [];
    const stay = path => {
      others.set(path, undefined);
      entities.push([path, fields(path)]);
    };
    for (let i = 0; i < n; i++) {
      const base = `u/d${String(i).padStart(3, '0')}`;
      const near = nextTo.map(suffix => `${base}${suffix}`);
      const due = i % 3 === 0 ? base : near[i % near.length];
      const parent = new Parent(due, i === 4 ? huge : children, roles[i % roles.length]);
      parents.push(parent);
      entities.push([due, fields(due, new Date(Date.now() - 60_000 - i * 1000))]);
      entities.push(...parent.first.map(path => [path, fields(path)]));
      const live = [base, ...near].filter(path => path !== due);
      for (const path of i < 4 ? live : [i % 3 === 0 ? near[i % near.length] : base]) {
        const expires = Date.now() + hour + i;
        others.set(path, expires);
        entities.push([path, fields(path, new Date(expires))]);
        for (const child of bear(path, 4)) stay(child);
      }
      for (const kind of ['u2', 'u!', 't']) stay(`${kind}/${due.slice(2)}/n/0000`);
    }
    await db.put(entities);
    return {entities: entities.length};
  },

  // Begins to meddle.
  async begin() {
    stopped = false;
    loop = (async () => {
      while (!stopped) {
        await meddleWithAll(false);
        await sleep(20);
      }
    })();
    loop.catch(error => (failed = error)); // acts and rest tell
  },

  // Reports whether it has done so much in the middle, in all, or as much as it can.
  async acts({n}) {
    if (failed !== null) throw failed;
    return {enough: acts() >= n || !parents.some(parent => parent.role === 'meddle')};
  },

  // Ends it, now that no process is at work, and then meddles once more.
  async rest({andGo}) {
    stopped = true;
    await loop;
    if (andGo) await meddleWithAll(true);
    return {inMiddle, bears};
  },

  // Returns how many parents are left that must go.
  async left() {
    const all = await db.all();
    return {due: parents.filter(parent => parent.state === 'due' && all.has(parent.path)).length};
  },

  // Compares everything with what must be there.
  async audit() {
    const all = await db.all();
    const orphans = parents.reduce((sum, parent) => sum + parent.audit(all), 0);
    for (const [path, expires] of others) {
      const is = all.get(path);
      if (is?.text !== path || is.expires !== expires) wrong.push(`${path} is ${JSON.stringify(is)}`);
      all.delete(path);
    }
    for (const path of all.keys()) wrong.push(`${path} is there`);
    return {wrong: few(wrong), orphans};
  },

  // Orphans were deleted: none may be left, and nothing else gone.
  async auditWithoutOrphans() {
    for (const parent of parents) {
      if (parent.state !== 'live') [parent.stays, parent.late] = [new Set(), new Map()];
    }
    return commands.audit();
  },

  // Opens another project, for recursiveDelete.
  async connect({project}) {
    connected = await Native.open(project);
    await connected.connect();
  },

  // Deletes parents and everything below them, some at the same time.
  recursiveDelete: ({paths, atOnce}) => inChunks(paths, 1, atOnce, ([path]) => connected.recursiveDelete(path)),
};

await answer(commands);
