'use strict';
// The six names of a writer. docs/key-format.md and docs/generations.md of Reaper are
// the specification; docs/writer-vectors.json holds all languages to it.

const {nurseryKey, key, parse, shardOf, inRollout} = require('./lib/key.js');
const {follow} = require('./lib/follower.js');

module.exports = {nurseryKey, key, parse, shardOf, inRollout, follow};
