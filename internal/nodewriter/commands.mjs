// Answers the commands of a test: each line of input is one in JSON, with its name and arguments. It
// answers each with a line of JSON, and ends the process with the input.

import {createInterface} from 'node:readline';

export async function answer(commands) {
  for await (const line of createInterface({input: process.stdin})) {
    const {command, ...how} = JSON.parse(line);
    let reply;
    try {
      reply = (await commands[command](how)) ?? {};
    } catch (error) {
      reply = {error: `${command}: ${error.stack}`};
    }
    console.log(JSON.stringify(reply));
  }
  process.exit(0); // also while it writes
}
