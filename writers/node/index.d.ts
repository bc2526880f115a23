/** A name, or a numeric id: as digits in a text, as a BigInt, or as a number up to 2^53. */
export type Id = string | number | bigint;

/**
 * An instant: a Date, a Timestamp of Firestore's client, a Temporal.Instant, or RFC 3339 text with a zone.
 * What is finer than a millisecond is rounded up.
 */
export type Instant =
  | Date
  | string
  | {readonly seconds: number; readonly nanoseconds: number; readonly milliseconds?: undefined}
  | {readonly epochNanoseconds: bigint};

export interface ExpiryKey {
  generation: number;
  shard: number;
  expires: Date;
}

/** The expiry key of an entity in generation 0, which is always right. */
export function nurseryKey(id: Id, expires: Instant, shards?: number): string;

/** The expiry key with these parts. */
export function key(generation: number, shard: number, expires: Instant): string;

/** The parts of an expiry key. Throws for any other text. */
export function parse(text: string): ExpiryKey;

/** The shard of an entity, from 0 to shards - 1. */
export function shardOf(id: Id, shards: number): number;

/** Whether an entity is among the first percent (0 to 100) of all. Raising percent takes no entity out. */
export function inRollout(id: Id, salt: string, percent: number): boolean;

/** The fields of a ReaperTarget record, or nothing if there is no record. */
export type TargetRecord = Readonly<Record<string, unknown>> | null | undefined;

export interface FollowOptions {
  /** Shards of the nursery while no record is known; 16 by default. */
  shards?: number;
  /** Called after a read that failed. */
  onError?: (error: unknown) => void;
  /** Milliseconds of the wall clock since 1970, and of a monotonic clock; for tests. */
  clock?: {wall(): number; monotonic(): number};
}

export interface Follower {
  /** The expiry key of an entity that is written now. Reads nothing, and fails only for a wrong id or instant. */
  key(id: Id, expires: Instant): string;
  /** Reads the record now. Resolves to whether it could be read; never rejects. */
  refresh(): Promise<boolean>;
  /** Ends the reads in the background. */
  stop(): void;
}

/** Follows the generations of a target by reads in the background. Never waits for one. */
export function follow(
  read: (options: {signal: AbortSignal}) => TargetRecord | Promise<TargetRecord>,
  options?: FollowOptions,
): Follower;
