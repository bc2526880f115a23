import {Instant} from './index';

export interface Bounds {
  /** The most items; all by default. */
  limit?: number;
  /** The most items of one query that are read but not yet yielded; 300 by default. */
  page?: number;
  /** The most queries at the same time; 32 by default. */
  parallel?: number;
  /** Ends the read with the signal's reason. */
  signal?: AbortSignal;
}

/**
 * Reads one sorted stream page by page: each call returns the next items, n at most, and whether there may be more
 * behind them. It is not called again after it said no or failed, nor while a call is under way.
 */
export type Source<T> = (n: number, options: {signal: AbortSignal}) =>
  | {items: T[]; more: boolean}
  | Promise<{items: T[]; more: boolean}>;

/** The items of all sources in the order of compare, those that are equal in the order of their sources. */
export function merge<T>(
  sources: Source<T>[],
  compare: (a: T, b: T) => number,
  bounds?: Bounds,
): AsyncGenerator<T, void>;

/** A place in the order: by time, in microseconds since 1970, and then by key, whose numeric ids are BigInts. */
export interface Place {
  at: bigint;
  path: (string | bigint)[];
}

/** What one query reads. */
export interface Range {
  values: (string | number)[];
  newest: boolean;
  /** The first instant wanted, and the first not wanted any more, in microseconds since 1970. */
  from: bigint | undefined;
  until: bigint | undefined;
  /** Only what comes after this place. */
  after: Place | undefined;
}

/** Opens the stream of a range, in order of place. */
export type Open<T> = (range: Range) => Source<Place & {item: T}>;

export interface ReadOptions extends Bounds {
  /** All values of the shard that writers use, integers or texts. */
  values: (string | number)[];
  /** Newest first; oldest first by default. */
  newest?: boolean;
  /** The first instant wanted; the first that there is by default. */
  from?: Instant | null;
  /** The first instant not wanted any more; none by default. */
  until?: Instant | null;
  /** What readPage returned as next: goes on after the last item of that page. */
  after?: string | null;
  /** The most shards in one query, 1 to 30; 30 by default. */
  perQuery?: number;
}

/** The shard values 0 to n - 1. */
export function numbers(n: number): number[];

/** Everything in order of time, as one query without shards would give it. */
export function read<T>(open: Open<T>, options: ReadOptions): AsyncGenerator<T, void>;

/** One page, and the token of the next one, which may turn out empty; null if there is nothing more now. */
export function readPage<T>(
  open: Open<T>,
  options: ReadOptions & {limit: number},
): Promise<{items: T[]; next: string | null}>;

interface FirestoreQuery<S> {
  get(): Promise<{docs: S[]}>;
}

/**
 * Reads a collection or collection group of Firestore's client, with equality filters or without, and without an
 * order of its own. Its items are document snapshots.
 */
export function fromFirestore<S>(
  base: FirestoreQuery<S>,
  options: {shard: string; time: string; Timestamp: new (seconds: number, nanoseconds: number) => object},
): Open<S>;

/** Reads a kind of @google-cloud/datastore. Its items are entities, with their keys in datastore.KEY. */
export function fromDatastore<T = any>(
  datastore: object,
  options: {
    kind: string;
    /** The client's own by default. */
    namespace?: string;
    /** Only this entity and its descendants: a key of the client. */
    ancestor?: object;
    /** Properties, and the values that they have. */
    where?: Readonly<Record<string, unknown>>;
    shard: string;
    time: string;
    PropertyFilter: new (name: any, operator: any, value: any) => object;
    /** As the client's get takes it. */
    wrapNumbers?: unknown;
  },
): Open<T>;
