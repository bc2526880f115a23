'use strict';
// Follows a target over the REST interface of Google's emulator, and writes entities
// there: one for each line of input, which holds an id and the seconds of its expiry. It
// prints the key of each. emulator_test.go runs it.

const {createInterface} = require('node:readline');
const {follow} = require('..');

const [mode, host, project] = process.argv.slice(2);
const isNative = mode === 'native';
const base = `http://${host}/v1/projects/${project}`;
const documents = `${base}/databases/(default)/documents`;

async function call(method, url, body, signal) {
  const response = await fetch(url, {
    method, signal, body: body && JSON.stringify(body),
    headers: {Authorization: 'Bearer owner', 'Content-Type': 'application/json'},
  });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`${method} ${url}: ${response.status} ${await response.text()}`);
  return response.json();
}

const value = v => {
  if ('integerValue' in v) return BigInt(v.integerValue);
  if ('arrayValue' in v) return (v.arrayValue.values ?? []).map(value);
  if ('mapValue' in v) return fields(v.mapValue.fields);
  if ('entityValue' in v) return fields(v.entityValue.properties);
  return v.stringValue ?? v.booleanValue ?? v.doubleValue ?? null;
};
const fields = map => Object.fromEntries(Object.entries(map ?? {}).map(([name, v]) => [name, value(v)]));

async function read({signal}) {
  if (isNative) {
    const document = await call('GET', `${documents}/ReaperTarget/sessions`, undefined, signal);
    return document && fields(document.fields);
  }
  const keys = [{path: [{kind: 'ReaperTarget', name: 'sessions'}]}];
  const {found} = await call('POST', `${base}:lookup`, {keys}, signal);
  return found?.length ? fields(found[0].entity.properties) : null;
}

function write(id, key) {
  const values = {expiry_key: {stringValue: key}};
  if (isNative) return call('PATCH', `${documents}/Session/${id}`, {fields: values});
  const upsert = {key: {path: [{kind: 'Session', name: id}]}, properties: values};
  return call('POST', `${base}:commit`, {mode: 'NON_TRANSACTIONAL', mutations: [{upsert}]});
}

(async () => {
  const follower = follow(read, {onError: error => console.error(String(error))});
  for await (const line of createInterface({input: process.stdin})) {
    const [id, seconds] = line.split('\t');
    const key = follower.key(id, new Date(Number(seconds) * 1000));
    await write(id, key);
    console.log(key);
  }
  follower.stop();
})();
