// Runs of @openai/agents over one WebSocket. Each line says who runs (`agent`), what it is told (`input`), and what that goes
// on from: the last `response`, by its id, or all of the `history`; without either it begins anew. The answer is what it
// came to and who said it, or an error.

import { Agent, setTracingDisabled, tool, withResponsesWebSocketSession } from '@openai/agents';
import { z } from 'zod';
import { message, questions, tell } from './lines.mjs';

const [baseURL] = process.argv.slice(2);
process.env.OPENAI_API_KEY = 'unused';
process.env.OPENAI_BASE_URL = baseURL;
setTracingDisabled(true);

const getWeather = tool({
  name: 'get_weather',
  description: 'Get the weather in a city',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `In ${city} it rains.`,
});
const weather = new Agent({ name: 'Weather', instructions: 'Be brief.', model: 'scripted', tools: [getWeather] });
const desk = Agent.create({ name: 'Desk', instructions: 'Hand over.', model: 'scripted', handoffs: [weather] });
const agents = { Weather: weather, Desk: desk };

await withResponsesWebSocketSession(
  async ({ run }) => {
    let last;
    for await (const line of questions()) {
      const { agent, input, from } = JSON.parse(line);
      const told = from === 'history' ? [...last.history, { role: 'user', content: input }] : input;
      const options = from === 'response' ? { previousResponseId: last.lastResponseId } : {};
      try {
        last = await run(agents[agent], told, options);
        tell({ answer: last.finalOutput, agent: last.lastAgent.name });
      } catch (error) {
        tell({ error: message(error) });
      }
    }
  },
  { providerOptions: { baseURL } },
);
