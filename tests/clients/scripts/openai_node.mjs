// A conversation with openai-node's ResponsesWS: a tool call, a second message, one that is refused, and one after that.
// Each event that ends a turn is written as a line of JSON.

import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [baseURL] = process.argv.slice(2);
const socket = new ResponsesWS(new OpenAI({ apiKey: 'unused', baseURL }));
const tools = [
  {
    type: 'function',
    name: 'get_weather',
    description: 'Get the weather in a city',
    strict: true,
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
  },
];
const questions = ['And tomorrow?', 'Are you there?'];
let last;

const ask = (input) => socket.send({ type: 'response.create', model: 'scripted', tools, store: false, input, previous_response_id: last });
const tell = (line) => console.log(JSON.stringify(line));

function next() {
  if (questions.length) ask(questions.shift());
  else socket.close();
}

socket.on('response.completed', ({ response }) => {
  last = response.id;
  const calls = response.output.filter((item) => item.type === 'function_call');
  tell({ type: 'completed', text: response.output_text ?? text(response), calls: calls.map((call) => call.arguments) });
  if (calls.length) ask(calls.map((call) => ({ type: 'function_call_output', call_id: call.call_id, output: 'It rains.' })));
  else next();
});
socket.on('error', (error) => {
  tell({ type: 'error', message: error.message });
  last = undefined; // a response is forgotten when a continuation of it fails
  next();
});
socket.on('close', (code) => tell({ type: 'close', code }));

function text(response) {
  const parts = response.output.filter((item) => item.type === 'message').flatMap((item) => item.content);
  return parts.map((part) => part.text).join('');
}

ask('What is the weather in Paris?');
