'use strict';
// Reading what is sharded; docs/layouts.md of Reaper describes it.

module.exports = require('./lib/read.js');
