// An application with sessions in a database, with Google's own client, for tests of adoption. Each
// line of input is a command in JSON; it answers each with a line of JSON.
//
// Usage: node application.mjs '{"mode": "native", "project": "p", "target": "sessions", "shards": 4}'

import {setTimeout as sleep} from 'node:timers/promises';
import writer from '../../writers/node/index.js';
import {answer} from './commands.mjs';
import {inChunks, open} from './sessions.mjs';

const o = JSON.parse(process.argv[2]);
const sessions = await open(o.mode, o.project);

const hour = 3600_000;
const day = 24 * hour;
const life = 30 * day; // the rule: sessions expire so long after they were created

// The i-th of the first sessions: every other one has expired.
const first = (i, now) => ({
  id: i % 10 === 3 ? `__id${i + 1}__` : i % 10 === 6 ? `sé 😀 ${i}` : `s-${String((i * 7919) % 1_000_000).padStart(6, '0')}`,
  like: i,
  created: new Date(now - (i % 2 === 0 ? 40 * day + i * 1001 : hour + i)),
  version: 'first',
});

// A few of a list, to be printed.
const few = list => ({n: list.length, few: list.slice(0, 3)});

// What was read, by name.
const copies = new Map();

async function readAll() {
  const all = new Map();
  for await (const session of sessions.all()) {
    if (all.has(session.id)) throw new Error(`${session.id} was read twice`);
    all.set(session.id, session);
  }
  return all;
}

// What a session is, but for its key.
const contents = s => `${s.createdAs} ${s.version} ${s.like} ${s.rest}`;

// A Writer goes on creating and extending sessions, as it did before anybody thought of expiry:
// without keys, until it learns to give them. Of the first sessions it has every so many-th alone,
// so that it knows what each must be.
class Writer {
  #name;
  #mine; // of the first sessions, by id
  #order;
  #known = new Map(); // what it has written last, by id
  #gone = []; // first sessions that were deleted before it could extend them
  #lost = []; // those that were deleted although they were live
  #follower = null;
  #turns = 0;
  #stopped = false;
  #loop;
  #tasks = []; // run between two turns, so that one session is written once at a time
  #error = null;

  constructor({name, n, part, parts, now}) {
    this.#name = name;
    this.#mine = new Map();
    for (let i = part; i < n; i += parts) {
      const session = first(i, now);
      this.#mine.set(session.id, session);
    }
    this.#order = [...this.#mine.keys()].slice(0, -4); // the others are for leaveKey
    this.#loop = this.#run().catch(error => {
      this.#error = error;
      for (const {fail} of this.#tasks) fail(error);
    });
  }

  #session(id, like, created = new Date(Date.now() - 1000)) {
    const session = {id, like, created, version: `${this.#name} ${this.#turns}`};
    if (this.#follower !== null) session.key = this.#follower.key(id, new Date(created.getTime() + life));
    return session;
  }

  async #put(session) {
    await sessions.putAll([session]);
    this.#known.set(session.id, session);
  }

  async #extend(id) {
    const before = this.#known.get(id) ?? this.#mine.get(id);
    const session = this.#session(id, before.like);
    if (await sessions.update(session)) {
      this.#known.set(id, session);
    } else if (Date.now() - before.created.getTime() > life) {
      this.#gone.push(id);
    } else {
      this.#lost.push(id);
    }
  }

  async #run() {
    while (!this.#stopped) {
      const n = ++this.#turns;
      await this.#put(this.#session(`new ${this.#name} ${n}`, n % this.#order.length));
      const some = k => this.#order[(n * 2 + k) % this.#order.length];
      await this.#put(this.#session(some(0), this.#mine.get(some(0)).like)); // whole
      if (!this.#gone.includes(some(1))) await this.#extend(some(1));
      const due = this.#tasks.filter(task => n >= task.turn);
      this.#tasks = this.#tasks.filter(task => n < task.turn);
      for (const {run, done, fail} of due) await run().then(done, fail);
      await sleep(200);
    }
  }

  #after(turns, run) {
    if (this.#error !== null) throw this.#error;
    return new Promise((done, fail) => this.#tasks.push({turn: this.#turns + turns, run, done, fail}));
  }

  // Waits until it has made so many more turns.
  turns(more) {
    return this.#after(more, async () => {});
  }

  // Extends a first session that has expired and whose key says so, and leaves the key behind.
  leaveKey() {
    return this.#after(0, async () => {
      for (const [id, session] of this.#mine) {
        if (this.#known.has(id) || Date.now() - session.created.getTime() < life) continue;
        const key = await sessions.key(id);
        if (key === undefined || writer.parse(key).expires.getTime() > Date.now()) continue;
        await this.#extend(id);
        if (this.#known.has(id) && (await sessions.key(id)) === key) return id;
      }
      throw new Error('no session has a key by which it has expired');
    });
  }

  // From now on it writes keys. It writes each of its sessions once more.
  giveKeys() {
    return this.#after(0, async () => {
      this.#follower = writer.follow(sessions.record(o.target), {shards: o.shards});
      await this.#follower.refresh();
      await inChunks([...this.#known.keys()], 1, 10, ([id]) => this.#extend(id));
    });
  }

  async stop() {
    this.#stopped = true;
    await this.#loop;
    if (this.#error !== null) throw this.#error;
    this.#follower?.stop();
    return {turns: this.#turns, lost: this.#lost, gone: this.#gone,
      known: [...this.#known.values()].map(({id, like, created, version}) => ({id, like, created: created.getTime(), version}))};
  }
}

let own = null; // its Writer, if it is one

const commands = {
  async fill({n, now}) {
    await sessions.putAll(Array.from({length: n}, (_, i) => first(i, now)));
  },

  // Reads everything and keeps it under a name. With a share it tells who has a key that is not in it.
  async read({as, salt, percent}) {
    const all = await readAll();
    copies.set(as, all);
    const keyed = [...all.values()].filter(s => s.key !== undefined);
    const outside = percent === undefined ? [] : keyed.filter(s => !writer.inRollout(s.id, salt, percent));
    return {sessions: all.size, keyed: keyed.length, outside: few(outside.map(s => s.id))};
  },

  // Compares two copies, keys too.
  compare({a, b}) {
    const [was, is] = [copies.get(a), copies.get(b)];
    const ids = new Set([...was.keys(), ...is.keys()]);
    const show = s => (s === undefined ? 'nothing' : `${contents(s)} ${s.key}`);
    return {different: few([...ids].filter(id => show(was.get(id)) !== show(is.get(id)))
      .map(id => `${id} was ${show(was.get(id))} and is ${show(is.get(id))}`))};
  },

  // Compares everything that is there now with a copy of the first sessions and with what writers
  // know of their own: exactly the first sessions that have expired, and that nobody has extended,
  // are gone. Every property of all others is what it was or, of a new session, what the like one
  // has. Each key is that of the rule.
  async audit({before, n, now, writers}) {
    const [were, all, wrong] = [copies.get(before), await readAll(), []];
    const likes = new Map([...were.values()].map(s => [s.like, s]));
    const expected = new Map();
    for (let i = 0; i < n; i++) {
      const {id, created} = first(i, now);
      if (now - created.getTime() < life) expected.set(id, contents(were.get(id)));
    }
    for (const {lost, known} of writers) {
      wrong.push(...lost.map(id => `${id} was live and gone`));
      for (const {id, like, created, version} of known) {
        expected.set(id, [created, version, like, likes.get(like).rest]);
      }
    }
    for (const [id, want] of expected) {
      const is = all.get(id);
      if (is === undefined) {
        wrong.push(`${id} is live and gone`);
      } else if (typeof want === 'string') {
        if (contents(is) !== want) wrong.push(`${id} was ${want} and is ${contents(is)}`);
      } else {
        const [created, version, like, rest] = want;
        if (is.created !== created || is.version !== version || is.like !== like || is.rest !== rest) {
          wrong.push(`${id} was written with ${created} ${version} ${like} ${rest} and is ${contents(is)}`);
        }
      }
    }
    for (const [id, is] of all) {
      if (!expected.has(id)) {
        wrong.push(`${id} has expired and is there: ${contents(is)} ${is.key}`);
        continue;
      }
      const key = is.key && writer.parse(is.key);
      if (!key || key.expires.getTime() !== is.created + life || key.shard !== writer.shardOf(id, o.shards) || is.unindexed) {
        wrong.push(`${id} of ${new Date(is.created).toISOString()} has the key ${is.key}`);
      }
    }
    return {sessions: all.size, wrong: few(wrong)};
  },

  async start(how) {
    own = new Writer(how);
    await own.turns(1);
  },
  turns: ({more}) => own.turns(more),
  leaveKey: async () => ({id: await own.leaveKey()}),
  giveKeys: () => own.giveKeys(),
  stop: () => own.stop(),
};

await answer(commands);
