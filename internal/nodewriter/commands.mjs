// Answers the commands of a test: each line of input is one in JSON, with its name and arguments. It
// answers each with a line of JSON, and ends the process with the input: the test has ended then, or was
// killed, and a call to an emulator that is gone with it would be repeated for minutes.

import {createInterface} from 'node:readline';

export async function answer(commands) {
  const lines = createInterface({input: process.stdin});
  lines.once('close', () => process.exit(0)); // also in the middle of a command
  for await (const line of lines) {
    const {command, ...how} = JSON.parse(line);
    let reply;
    try {
      reply = (await commands[command](how)) ?? {};
    } catch (error) {
      reply = {error: `${command}: ${error.stack}`};
    }
    console.log(JSON.stringify(reply));
  }
}
