// Follows a target by @reaper-ttl/writer and Google's own clients, as writers/node/README.md shows
// it: prints an expiry key for each line of input, which is an id.
//
// Usage: node follow.mjs '{"mode": "native", "project": "p", "target": "sessions"}'

import {Datastore} from '@google-cloud/datastore';
import {Firestore} from '@google-cloud/firestore';
import {createInterface} from 'node:readline';
import writer from '../../writers/node/index.js';

const o = JSON.parse(process.argv[2]);

function reader() {
  if (o.mode === 'native') {
    const firestore = new Firestore({projectId: o.project});
    const record = firestore.doc(`ReaperTarget/${o.target}`);
    return async () => (await record.get()).data() ?? null;
  }
  const datastore = new Datastore({projectId: o.project});
  const record = datastore.key(['ReaperTarget', o.target]);
  return async () => (await datastore.get(record))[0] ?? null;
}

const stamper = writer.follow(reader(), {onError: error => console.error(String(error))});
for await (const id of createInterface({input: process.stdin})) {
  console.log(stamper.key(id, '2030-01-01T00:00:00Z'));
}
stamper.stop();
