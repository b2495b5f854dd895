// A conversation with openai-node's ResponsesWS. Each line is a question; tools that the model asks for are run, and what it
// says then is the answer. After an error, and after a reconnect, which is told as well, a new chain says everything again.

import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';
import { questions, tell } from './lines.mjs';

const [baseURL] = process.argv.slice(2);
const reconnect = { initialDelay: 200, onReconnecting: () => {} };
const socket = new ResponsesWS(new OpenAI({ apiKey: 'unused', baseURL }), { reconnect });
const tools = [
  {
    type: 'function',
    name: 'get_weather',
    description: 'Get the weather in a city',
    strict: true,
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
  },
];
let last;
let said = [];
let calls = [];
let lost;

function send(input) {
  const items = typeof input === 'string' ? [{ role: 'user', content: input }] : input;
  const isFirst = !said.length;
  said.push(...items);
  const fields = last || isFirst ? { input, previous_response_id: last } : { input: said };
  socket.send({ type: 'response.create', model: 'scripted', tools, store: false, ...fields });
}

socket.on('response.completed', ({ response }) => {
  last = response.id;
  said.push(...response.output);
  const asked = response.output.filter((item) => item.type === 'function_call');
  if (asked.length) {
    calls.push(...asked.map((call) => JSON.parse(call.arguments).city));
    send(asked.map((call) => ({ type: 'function_call_output', call_id: call.call_id, output: 'It rains.' })));
  } else {
    tell({ text: response.output.flatMap((item) => item.content ?? []).map((part) => part.text).join(''), calls });
    calls = [];
  }
});
socket.on('error', (error) => {
  if (!error.error) return; // the socket's own, which a reconnect follows
  tell({ error: error.message });
  last = undefined; // a response is forgotten when a continuation of it fails
  said.pop();
});
socket.on('reconnecting', ({ closeCode }) => {
  last = undefined; // what the server remembers is lost with the connection
  lost ??= closeCode; // later attempts have codes of their own
});
socket.on('reconnected', () => {
  tell({ reconnected: lost });
  lost = undefined;
});

for await (const line of questions()) send(JSON.parse(line));
