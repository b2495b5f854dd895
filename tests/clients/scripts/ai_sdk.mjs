// A conversation by the AI SDK over WebSocket. Each line is a question; the SDK runs the tools that the model asks for, and
// what was said then is the answer, with the reason why it ended and the errors met. `store` is the provider's option.

import { createOpenAI } from '@ai-sdk/openai';
import { stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { message, questions, tell } from './lines.mjs';
import { websocketFetch } from './websocket_fetch.mjs';

const [baseURL, store] = process.argv.slice(2);
const openai = createOpenAI({ baseURL, apiKey: 'unused', fetch: websocketFetch() });
const getWeather = tool({
  description: 'Get the weather in a city',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `In ${city} it rains.`,
});
const messages = [];

for await (const line of questions()) {
  messages.push({ role: 'user', content: JSON.parse(line) });
  const errors = [];
  const result = streamText({
    model: openai.responses('scripted'),
    messages,
    tools: { get_weather: getWeather },
    stopWhen: stepCountIs(5),
    providerOptions: { openai: { store: store === 'true', reasoningSummary: 'auto' } },
    onError: ({ error }) => errors.push(message(error)),
  });
  try {
    await result.consumeStream();
    messages.push(...(await result.responseMessages));
    tell({ text: await result.text, reason: await result.finishReason, errors });
  } catch {
    messages.pop();
    tell({ errors });
  }
}
