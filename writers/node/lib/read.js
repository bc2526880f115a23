'use strict';
// Reads what is spread over shards in order of time, as shardread/fsread and
// shardread/dsread of Reaper do in Go.

const {isDate} = require('node:util/types');
const {checkInteger, isTimestamp, textMillis} = require('./key.js');
const {checkBounds, merge} = require('./merge.js');

const MAX_VALUES = 9_999; // a read opens all queries at once
const MAX_PER_QUERY = 30; // as many as the stores take in one "in" filter
const MAX_LOOKUP = 1_000; // keys that Datastore mode takes in one request
const FIRST = BigInt(Date.parse('0001-01-01T00:00:00.000Z')) * 1000n;
const LAST = BigInt(Date.parse('9999-12-31T23:59:59.999Z')) * 1000n + 999n;

const quoted = value => (typeof value === 'bigint' ? `${value}n` : JSON.stringify(value) ?? String(value));

function numbers(n) {
  checkInteger('shards', n, 1, MAX_VALUES);
  return Array.from({length: n}, (_, i) => i);
}

// The shard values of each query. It refuses what would make a reader miss shards or read
// one twice.
function group(values, most) {
  checkInteger('perQuery', most, 1, MAX_PER_QUERY);
  if (!Array.isArray(values) || values.length === 0) {
    throw new TypeError('values: there are no shard values; a reader needs all that writers use');
  }
  if (values.length > MAX_VALUES) {
    throw new RangeError(`values: there are ${values.length} shard values; a reader takes at most ${MAX_VALUES}`);
  }
  const groups = [];
  const seen = new Set();
  values.forEach((value, i) => {
    const place = `values: shard value ${i + 1} of ${values.length}: ${quoted(value)}`;
    if (typeof value !== 'string' && !Number.isSafeInteger(value)) {
      throw new TypeError(`${place} is neither an integer nor a text`);
    }
    if (typeof value !== typeof values[0]) {
      throw new TypeError(`${place} is a ${typeof value}, while the first one is a ${typeof values[0]}`);
    }
    if (typeof value === 'string' && Buffer.from(value, 'utf8').toString('utf8') !== value) {
      throw new RangeError(`${place} is not valid Unicode`);
    }
    if (seen.has(value)) throw new RangeError(`${place} is there twice`);
    seen.add(value);
    if (i % most === 0) groups.push([]);
    groups.at(-1).push(value);
  });
  return groups;
}

const up = (n, unit) => n / unit + (n > 0n && n % unit !== 0n ? 1n : 0n);
const down = (n, unit) => n / unit - (n < 0n && n % unit !== 0n ? 1n : 0n);

// An instant in microseconds since 1970, which is what the stores keep. Rounded up, a
// bound leaves out exactly what the unrounded one would.
function microsOf(what, instant) {
  if (instant === undefined || instant === null) return undefined;
  let micros;
  if (isDate(instant) && !Number.isNaN(instant.getTime())) {
    micros = BigInt(instant.getTime()) * 1000n;
  } else if (typeof instant === 'string') {
    const [, fraction = ''] = /\.(\d+)/.exec(instant) ?? [];
    const whole = BigInt(textMillis(instant.replace(/\.\d+/, ''))) * 1000n;
    micros = whole + BigInt(fraction.padEnd(6, '0').slice(0, 6)) + (/[1-9]/.test(fraction.slice(6)) ? 1n : 0n);
  } else if (typeof instant?.epochNanoseconds === 'bigint') { // a Temporal.Instant
    micros = up(instant.epochNanoseconds, 1000n);
  } else if (typeof instant === 'object' && instant !== null && isTimestamp(instant)) {
    micros = BigInt(instant.seconds) * 1_000_000n + up(BigInt(instant.nanoseconds), 1000n);
  } else {
    throw new TypeError(`${what}: want a Date, a Timestamp, a Temporal.Instant, or RFC 3339 text with a zone`);
  }
  if (micros < FIRST || micros > LAST) throw new RangeError(`${what}: not an instant in the years 1 to 9999`);
  return micros;
}

// A path is a list of names (texts) and numeric ids (BigInts), from the root on. The
// stores order it part by part: ids by value and before all names, names by their bytes,
// what is above before what is below.
function comparePaths(a, b) {
  for (let i = 0; i < a.length && i < b.length; i++) {
    if (a[i] === b[i]) continue;
    if (typeof a[i] !== typeof b[i]) return typeof a[i] === 'bigint' ? -1 : 1;
    if (typeof a[i] === 'bigint') return a[i] < b[i] ? -1 : 1;
    return Buffer.compare(Buffer.from(a[i], 'utf8'), Buffer.from(b[i], 'utf8'));
  }
  return a.length - b.length;
}

function compareEntries(a, b) {
  if (a.at !== b.at) return a.at < b.at ? -1 : 1;
  return comparePaths(a.path, b.path);
}

const orderOf = newest => (newest ? (a, b) => -compareEntries(a, b) : compareEntries);

// The token of a page names the place of its last entry, and nothing of the queries: so
// it stays right when shards are added, or read by other queries.
function printToken(newest, {at, path}) {
  const parts = path.map(part => (typeof part === 'bigint' ? {id: String(part)} : part));
  const text = JSON.stringify([1, newest ? 'newest' : 'oldest', String(at), parts]);
  return Buffer.from(text, 'utf8').toString('base64url');
}

// Whether a text is an integer as the stores have them, of 64 bits.
const isDecimal = text => typeof text === 'string' && /^(0|-?[1-9][0-9]{0,18})$/.test(text) &&
  BigInt.asIntN(64, BigInt(text)) === BigInt(text);

function parseToken(newest, token) {
  let fields;
  try {
    fields = JSON.parse(Buffer.from(token, 'base64url').toString('utf8'));
  } catch {
    fields = undefined;
  }
  const [version, order, at, parts] = Array.isArray(fields) ? fields : [];
  const valid = version === 1 && (order === 'newest' || order === 'oldest') && isDecimal(at) &&
    Array.isArray(parts) && parts.length > 0 && parts.every(p => typeof p === 'string' || isDecimal(p?.id));
  if (!valid || BigInt(at) < FIRST || BigInt(at) > LAST) {
    const start = quoted(String(token).slice(0, 80));
    throw new RangeError(`after: ${start} is not a page token; pass what readPage returned as next`);
  }
  if (order !== (newest ? 'newest' : 'oldest')) {
    throw new RangeError(`after: the page token is of a read ${order} first; go on in that order, or without a token`);
  }
  return {at: BigInt(at), path: parts.map(p => (typeof p === 'string' ? p : BigInt(p.id)))};
}

// Yields entries: {at, path, item}.
async function* entries(open, {values, newest = false, from, until, after, perQuery = MAX_PER_QUERY, ...bounds}) {
  if (typeof open !== 'function') throw new TypeError('read: want what fromFirestore or fromDatastore returns');
  checkBounds(bounds);
  const groups = group(values, perQuery);
  const [begins, ends] = [microsOf('from', from), microsOf('until', until)];
  const range = {newest: Boolean(newest), from: begins, until: ends, after: undefined};
  if (range.until !== undefined && range.until < (range.from ?? FIRST)) {
    throw new RangeError('until: the time wanted ends before it starts');
  }
  if (after !== undefined && after !== null) range.after = parseToken(range.newest, after);
  const sources = groups.map(some => open({values: some, ...range}));
  try {
    yield* merge(sources, orderOf(range.newest), bounds);
  } catch (error) {
    if (bounds.signal?.aborted) throw bounds.signal.reason;
    const context = `read ${values.length} shards by ${sources.length} queries: ${error?.message ?? error}`;
    throw Object.assign(new Error(context, {cause: error}), error?.code === undefined ? {} : {code: error.code});
  }
}

async function* read(open, options = {}) {
  for await (const {item} of entries(open, options)) yield item;
}

async function readPage(open, options = {}) {
  checkInteger('limit', options.limit, 1, Number.MAX_SAFE_INTEGER);
  const items = [];
  let last;
  for await (last of entries(open, options)) items.push(last.item);
  return {items, next: items.length === options.limit ? printToken(options.newest, last) : null};
}

function checkNames(adapter, {shard, time}) {
  for (const [what, name] of [['shard', shard], ['time', time]]) {
    if (typeof name !== 'string' || name === '') {
      throw new TypeError(`${adapter}: ${what} is not the name of a property`);
    }
  }
  if (shard === time) throw new RangeError(`${adapter}: ${quoted(shard)} holds both the shard and the time`);
}

// Native mode writes a numeric id as __id7__.
function segments(path) {
  return path.split('/').map(segment => {
    const numeric = /^__id(-?[0-9]{1,19})__$/.exec(segment);
    return numeric ? BigInt(numeric[1]) : segment;
  });
}

// Whether a query has an order, which a place to start at has to fit. A place by name is one within the
// collection, or a path for a group.
const isOrdered = query => ['x', 'x/x'].some(place => {
  try {
    query.startAt(place);
    return true;
  } catch {
    return false;
  }
});

const pathText = path => path.map(part => (typeof part === 'bigint' ? `__id${part}__` : part)).join('/');

function fromFirestore(base, {shard, time, Timestamp} = {}) {
  checkNames('fromFirestore', {shard, time});
  if (typeof Timestamp !== 'function') {
    throw new TypeError('fromFirestore: Timestamp is missing; pass that class of the client that base is of');
  }
  if (isOrdered(base)) throw new TypeError('fromFirestore: base has an order of its own; time and newest give it');
  const timestamp = micros => {
    const seconds = down(micros, 1_000_000n);
    return new Timestamp(Number(seconds), Number(micros - seconds * 1_000_000n) * 1000);
  };
  const behind = (query, {at, path}) => query.startAfter(timestamp(at), base.firestore.doc(pathText(path)));
  return ({values, newest, from, until, after}) => {
    const direction = newest ? 'desc' : 'asc';
    // A bound from below leaves out what is not a timestamp, too.
    let all = values.length === 1 ? base.where(shard, '==', values[0]) : base.where(shard, 'in', values);
    all = all.where(time, '>=', timestamp(from ?? FIRST));
    if (until !== undefined) all = all.where(time, '<', timestamp(until));
    all = all.orderBy(time, direction).orderBy('__name__', direction).offset(0);
    if (after !== undefined) {
      try {
        behind(all, after);
      } catch (error) {
        throw new RangeError('after: the page token is of another collection', {cause: error});
      }
    }
    let last = after;
    return async n => {
      const page = all.limit(n);
      const {docs} = await (last === undefined ? page : behind(page, last)).get();
      const items = docs.map(item => {
        const at = item.get(time);
        if (!(at instanceof Timestamp)) {
          throw new TypeError(`document ${item.ref.path}: ${time} is not a Timestamp; ` +
            'pass the class of the client that base is of, and select the field if base selects any');
        }
        return {at: microsOf(time, at), path: segments(item.ref.path), item};
      });
      last = items.at(-1) ?? last;
      return {items, more: docs.length === n};
    };
  };
}

// The key of an entity as a path.
function pathOf(key) {
  const own = [key.kind, key.id === undefined ? key.name : BigInt(key.id)];
  return key.parent ? [...pathOf(key.parent), ...own] : own;
}

// What the client makes of an instant in microseconds.
function clientMillis(micros) {
  const seconds = down(micros, 1_000_000n);
  return new Date(Number(seconds) * 1000 + Number((micros - seconds * 1_000_000n) * 1000n) / 1e6).getTime();
}

const keyText = key => JSON.stringify(pathOf(key), (_, part) => (typeof part === 'bigint' ? {id: String(part)} : part));

// The value of a property, which may lie in an entity that another one holds. Its name then has a
// point, as has that of a flattened one.
function valueOf(entity, name) {
  if (Object.hasOwn(entity, name)) return entity[name];
  for (let i = name.indexOf('.'); i > 0; i = name.indexOf('.', i + 1)) {
    const inner = entity[name.slice(0, i)];
    const value = typeof inner === 'object' && inner !== null ? valueOf(inner, name.slice(i + 1)) : undefined;
    if (value !== undefined) return value;
  }
  return undefined;
}

// The client gives instants in milliseconds. Their microseconds, which the order goes by,
// show in a projection only, as integers.
function projectedMicros(value) {
  if (isDate(value)) {
    throw new TypeError('the projected time is a Date, which has no microseconds: this version of ' +
      '@google-cloud/datastore does not fit; update it or @reaper-ttl/writer');
  }
  if (typeof value?.value !== 'string' || !isDecimal(value.value)) return undefined;
  const micros = BigInt(value.value);
  return micros >= FIRST && micros <= LAST ? micros : undefined;
}

function fromDatastore(datastore, options = {}) {
  const {kind, ancestor, where = {}, shard, time, PropertyFilter, wrapNumbers} = options;
  const namespace = options.namespace ?? datastore.namespace;
  checkNames('fromDatastore', {shard, time});
  if (typeof kind !== 'string' || kind === '') throw new TypeError('fromDatastore: kind is not the name of a kind');
  if (typeof PropertyFilter !== 'function') {
    throw new TypeError('fromDatastore: PropertyFilter is missing; pass that class of @google-cloud/datastore');
  }
  if (ancestor && (ancestor.namespace || '') !== (namespace || '')) {
    throw new RangeError(`fromDatastore: the ancestor is in namespace ${quoted(ancestor.namespace || '')}, ` +
      `the query in ${quoted(namespace || '')}`);
  }
  const equal = Object.entries(where);
  for (const [name, value] of equal) {
    if (Array.isArray(value)) throw new TypeError(`fromDatastore: where ${quoted(name)}: a list is not a single value`);
  }

  // The query of a range, and which of its rows are wanted: its filters are as fine as a
  // Date, the bounds are finer.
  function prepare({values, newest, from, until, after}) {
    const compare = orderOf(newest);
    let floor = from ?? FIRST;
    let ceiling = until ?? LAST + 1n;
    if (after !== undefined && newest && after.at < ceiling) ceiling = after.at + 1n;
    if (after !== undefined && !newest && after.at > floor) floor = after.at;
    const query = () => {
      const q = datastore.createQuery(namespace || undefined, kind);
      if (ancestor) q.hasAncestor(ancestor);
      const filters = [
        ...equal.map(([name, value]) => [name, '=', value]),
        values.length === 1 ? [shard, '=', values[0]] : [shard, 'IN', values],
        [time, '>=', new Date(Number(down(floor, 1000n)))],
      ];
      // No Date asks for the store's last millisecond, and behind it is nothing to leave out.
      const end = up(ceiling, 1000n);
      if (end * 1000n <= LAST) filters.push([time, '<', new Date(Number(end))]);
      for (const [name, op, value] of filters) q.filter(new PropertyFilter(name, op, value));
      return q.order(time, {descending: newest}).order('__key__', {descending: newest}).select(time);
    };
    const wanted = row => row.at !== undefined && row.at >= (from ?? FIRST) &&
      (until === undefined || row.at < until) && (after === undefined || compare(after, row) < 0);
    return {query, wanted};
  }

  // The entities of some rows. One that changed since its row was read so that it would be
  // elsewhere, or nowhere, is left out: its own place is where it is yielded, if at all.
  async function load(rows, values) {
    if (rows.length === 0) return [];
    const found = new Map();
    const keys = new Map(rows.map(row => [keyText(row.key), row.key]));
    const [entities] = await datastore.get([...keys.values()], wrapNumbers === undefined ? {} : {wrapNumbers});
    for (const entity of entities) found.set(keyText(entity[datastore.KEY]), entity);
    const plain = value => (typeof values[0] === 'string' ? value : Number(value?.value ?? value));
    return rows.flatMap(({at, path, key}) => {
      const item = found.get(keyText(key));
      const now = item && valueOf(item, time);
      const same = isDate(now) && values.includes(plain(valueOf(item, shard))) && now.getTime() === clientMillis(at);
      return same ? [{at, path, item}] : [];
    });
  }

  return range => {
    const {query, wanted} = prepare(range);
    let cursor; // of the store: it belongs to the query, which stays the same
    return async most => {
      const n = Math.min(most, MAX_LOOKUP);
      const q = query().limit(n);
      if (cursor !== undefined) q.start(cursor);
      const [projected, info] = await datastore.runQuery(q, {wrapNumbers: true});
      cursor = info.endCursor ?? cursor;
      const rows = projected.map(entity => {
        const key = entity[datastore.KEY];
        return {at: projectedMicros(valueOf(entity, time)), path: pathOf(key), key};
      }).filter(wanted);
      return {items: await load(rows, range.values), more: projected.length === n};
    };
  };
}

module.exports = {fromDatastore, fromFirestore, merge, numbers, read, readPage};
