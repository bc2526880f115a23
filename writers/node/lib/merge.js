'use strict';
// Merges sorted sources into one sequence, as package shardread of Reaper does in Go.

const {checkInteger} = require('./key.js');

const PAGE = 300;
const PARALLEL = 32;

// The merge of one run. Only its own methods change it, and nothing runs between two of
// its awaits.
class Merge {
  #compare;
  #limit;
  #page;
  #parallel;
  #streams;
  #heap = []; // the streams that have items, the next one first
  #yielded = 0;
  #queue = []; // streams whose call waits for one of the parallel ones to end
  #running = 0;
  #arrivals = []; // at most one of each stream
  #wake = () => {};
  #abort = new AbortController();

  constructor(sources, compare, {limit = Infinity, page = PAGE, parallel = PARALLEL}) {
    this.#compare = compare;
    this.#limit = limit;
    this.#page = page;
    this.#parallel = parallel;
    this.#streams = sources.map((source, index) => ({
      index, source,
      unread: [], // read, but not yet yielded
      last: undefined, // the last item read
      taken: 0, // how many were yielded
      read: 0,
      asked: 0, // of the call under way; 0 means none
      ended: false, // there is no more to ask for
      error: null,
    }));
  }

  // Ends the run: sources see their signal, and what they still answer is discarded.
  stop(reason) {
    this.#queue = [];
    this.#abort.abort(reason);
    this.#wake();
  }

  async *run() {
    await this.#start();
    while (this.#heap.length > 0) {
      this.#abort.signal.throwIfAborted();
      const s = this.#heap[0];
      const item = s.unread.shift();
      s.taken++;
      this.#yielded++;
      if (this.#yielded === this.#limit) {
        yield item;
        return;
      }
      this.#ask(s); // first, so that it is under way while the caller works
      yield item;
      await this.#fill(s);
      if (s.unread.length === 0) {
        const last = this.#heap.pop();
        if (this.#heap.length > 0 && last !== s) this.#heap[0] = last;
      }
      this.#sink(0);
    }
  }

  // Gets the first page of every stream. Nothing can be yielded before all are there, so
  // one that failed does not wait for one that is slow.
  async #start() {
    for (const s of this.#streams) this.#ask(s);
    for (let waiting = this.#streams.length; waiting > 0;) {
      const s = await this.#receive();
      if (s.error !== null) throw s.error;
      if (s.unread.length > 0) this.#heap.push(s);
      if (s.unread.length > 0 || s.ended) {
        waiting--;
      } else { // an empty page, but not the last one
        this.#ask(s);
      }
    }
    for (let i = this.#heap.length >> 1; i >= 0; i--) this.#sink(i);
  }

  // Returns when the stream has an item to yield, or none any more.
  async #fill(s) {
    while (s.unread.length === 0 && !s.ended) {
      this.#ask(s);
      await this.#receive();
    }
    if (s.unread.length === 0 && s.error !== null) throw s.error;
  }

  // Waits for one page, of any stream.
  async #receive() {
    while (this.#arrivals.length === 0 && !this.#abort.signal.aborted) {
      await new Promise(resolve => { this.#wake = resolve; });
    }
    this.#abort.signal.throwIfAborted();
    const {stream, items, more, error} = this.#arrivals.shift();
    this.#accept(stream, items, more, error);
    return stream;
  }

  // Calls the source when the stream runs low.
  #ask(s) {
    const want = this.#want(s);
    if (s.asked > 0 || s.ended || s.unread.length > Math.floor(want / 2)) return;
    s.asked = want - s.unread.length;
    this.#queue.push(s);
    this.#dispatch();
  }

  #dispatch() {
    while (this.#running < this.#parallel && this.#queue.length > 0) {
      this.#running++;
      this.#call(this.#queue.shift());
    }
  }

  async #call(stream) {
    let arrival;
    try {
      const {items, more} = await stream.source(stream.asked, {signal: this.#abort.signal});
      arrival = {stream, items, more, error: null};
    } catch (error) {
      arrival = {stream, items: [], more: false, error: error ?? new Error('a source failed without an error')};
    }
    this.#running--;
    this.#arrivals.push(arrival);
    this.#dispatch();
    this.#wake();
  }

  // How many items of the stream should be at hand: as many as it will likely have among
  // those that are still wanted, judged by its part in what was yielded so far, and once
  // the spread of such a number; a page at most.
  #want(s) {
    if (this.#limit === Infinity) return this.#page;
    const left = this.#limit - this.#yielded;
    const likely = left * (s.taken + 1) / (this.#yielded + this.#streams.length);
    return Math.min(this.#page, left, Math.ceil(likely + Math.sqrt(likely)));
  }

  // Adds a page to the stream. One that breaks the source's promise would break the order
  // of everything, unseen.
  #accept(s, items, more, error) {
    const asked = s.asked;
    s.asked = 0;
    s.ended = !more;
    s.error = error;
    if (s.error === null && items.length > asked) {
      s.error = new Error(`source ${s.index} returned ${items.length} items where at most ${asked} were wanted`);
    }
    for (let i = 0; s.error === null && i < items.length; i++) {
      if (s.read + i > 0 && this.#compare(i > 0 ? items[i - 1] : s.last, items[i]) > 0) {
        const place = s.read + i;
        s.error = new Error(`source ${s.index} is not in order: its item ${place + 1} belongs before item ${place}`);
      }
    }
    if (s.error !== null) {
      s.ended = true;
    } else if (items.length > 0) {
      s.unread = s.unread.concat(items);
      s.read += items.length;
      s.last = items.at(-1);
    }
  }

  // Items that compare as equal come in the order of their sources.
  #isLess(a, b) {
    const c = this.#compare(a.unread[0], b.unread[0]);
    return c < 0 || (c === 0 && a.index < b.index);
  }

  #sink(i) {
    const heap = this.#heap;
    for (;;) {
      let least = i;
      for (const child of [2 * i + 1, 2 * i + 2]) {
        if (child < heap.length && this.#isLess(heap[child], heap[least])) least = child;
      }
      if (least === i) return;
      [heap[i], heap[least]] = [heap[least], heap[i]];
      i = least;
    }
  }
}

function checkBounds({limit, page, parallel}) {
  for (const [what, n] of [['limit', limit], ['page', page], ['parallel', parallel]]) {
    if (n !== undefined) checkInteger(what, n, 1, Number.MAX_SAFE_INTEGER);
  }
}

async function* merge(sources, compare, options = {}) {
  checkBounds(options);
  const {signal} = options;
  signal?.throwIfAborted();
  const run = new Merge(sources, compare, options);
  const stop = () => run.stop(signal.reason);
  signal?.addEventListener('abort', stop, {once: true});
  try {
    yield* run.run();
  } finally {
    signal?.removeEventListener('abort', stop);
    run.stop(new Error('the merge has ended'));
  }
}

module.exports = {checkBounds, merge};
