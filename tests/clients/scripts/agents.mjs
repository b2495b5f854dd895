// Runs of @openai/agents over one WebSocket. `chained` goes on from the response of a first run; `whole` leaves it to the
// SDK, which then sends everything each time; `refused` meets an error. What comes of it is written as lines of JSON.

import { Agent, setTracingDisabled, tool, withResponsesWebSocketSession } from '@openai/agents';
import { z } from 'zod';

const [baseURL, mode] = process.argv.slice(2);
process.env.OPENAI_API_KEY = 'unused';
process.env.OPENAI_BASE_URL = baseURL;
setTracingDisabled(true);

const weather = tool({
  name: 'get_weather',
  description: 'Get the weather in a city',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `In ${city} it rains.`,
});
const agent = new Agent({ name: 'Weather', instructions: 'Be brief.', model: 'scripted', tools: [weather] });
const tell = (line) => console.log(JSON.stringify(line));

await withResponsesWebSocketSession(
  async ({ run }) => {
    try {
      if (mode === 'chained') {
        const first = await run(agent, 'Hello.');
        const second = await run(agent, 'What is the weather in Paris?', { previousResponseId: first.lastResponseId });
        tell({ answers: [first.finalOutput, second.finalOutput] });
      } else {
        tell({ answers: [(await run(agent, 'What is the weather in Paris?')).finalOutput] });
      }
    } catch (error) {
      tell({ error: String(error?.message ?? error) });
    }
  },
  { providerOptions: { baseURL } },
);
