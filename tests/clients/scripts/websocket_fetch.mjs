// A `fetch` for the AI SDK that carries streams over a WebSocket. A streamed POST to …/responses becomes a `response.create`
// and its events a stream of server-sent events; whatever else is asked goes the usual way. A socket is opened when there is
// something to send and none is free, and is kept.

import WebSocket from 'ws';

const ENDS = new Set(['response.completed', 'error']);

export function websocketFetch() {
  const idle = [];

  async function take(url, headers) {
    const kept = idle.shift();
    if (kept) return kept;
    const socket = new WebSocket(url.replace(/^http/, 'ws'), { headers });
    await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject));
    socket.once('close', () => {
      if (idle.includes(socket)) idle.splice(idle.indexOf(socket), 1);
    });
    return socket;
  }

  function events(socket, body) {
    const encoder = new TextEncoder();
    return new ReadableStream({
      start(stream) {
        const finish = () => {
          socket.off('message', hear).off('close', finish);
          stream.close();
        };
        const hear = (data) => {
          stream.enqueue(encoder.encode(`data: ${data}\n\n`));
          if (!ENDS.has(JSON.parse(data).type)) return;
          idle.push(socket);
          finish();
        };
        socket.on('message', hear).on('close', finish);
        socket.send(JSON.stringify({ type: 'response.create', ...body }));
      },
    });
  }

  return async (url, init) => {
    const { stream, ...body } = init?.method === 'POST' ? JSON.parse(init.body) : {};
    if (!stream || !String(url).endsWith('/responses')) return fetch(url, init);
    const Authorization = new Headers(init.headers).get('authorization');
    const socket = await take(String(url), { Authorization, 'OpenAI-Beta': 'responses_websockets=2026-02-06' });
    return new Response(events(socket, body), { headers: { 'content-type': 'text/event-stream' } });
  };
}
