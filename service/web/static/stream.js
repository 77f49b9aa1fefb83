/** Streamed generations: server-sent events that survive a lost connection. */

import {
  ApiError, ConnectionError, MAX_TRIES, call, fromNetwork, isUnavailable, post, postImages,
  waitBeforeRetry,
} from "./api.js";

const STREAM_FIELDS = ["granularity", "output"]; // a resumed stream needs them again

/** Thrown if the server ended a generation before it was complete. */
class GenerationAborted extends Error {}

/** Parse the server-sent events of a response; yields {name, id, data}. */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await fromNetwork(reader.read());
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = { name: "message", id: null, data: null };
        for (const line of block.split("\n")) {
          if (line.startsWith("event: ")) event.name = line.slice(7);
          else if (line.startsWith("id: ")) event.id = line.slice(4);
          else if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // if the caller stops early, so does the server
  }
}

/**
 * Follow one generation to its end, across lost connections.
 *
 * A lost stream resumes after the last event received, with exponential backoff. If the server is
 * full, the request is sent again after `Retry-After`. If the server no longer has the generation,
 * it starts again; the pixels are the same because the request names its seed. A generation that
 * the server aborts twice fails.
 *
 * @param {{fields: object, image?: Blob}} request fields of the API; `image`: the PNG to complete
 * @param {(event: {name: string, data: object}) => void} onEvent receives every event but `error`
 * @param {(text: string) => void} onStatus receives the reason of each wait
 * @param {AbortSignal} signal cancels the generation, on the server too
 */
export async function followGeneration(request, onEvent, onStatus, signal) {
  let [id, lastEventId, tries, abortedBefore, cut] = [null, null, 0, false, false];
  try {
    for (;;) {
      try {
        const response = id ? await resume(request, id, lastEventId, signal)
          : await start(request, signal);
        if (tries > 0) onStatus("Connected. Drawing …");
        for await (const event of readEvents(response)) {
          signal.throwIfAborted(); // events that were already buffered are not wanted either
          if (event.name === "error") throw new GenerationAborted(event.data.error.message);
          if (event.name === "image") cut ||= event.data.finish_reason !== "length";
          if (event.name === "completed" && cut) {
            throw new GenerationAborted("the drawing was cancelled");
          }
          tries = 0;
          lastEventId = event.id ?? lastEventId;
          if (event.name === "started") id = event.data.id;
          onEvent(event);
          if (event.name === "completed") return;
        }
        throw new ConnectionError("the stream ended early");
      } catch (error) {
        signal.throwIfAborted();
        const status = error instanceof ApiError ? error.status : null;
        const aborted = error instanceof GenerationAborted;
        const restart = aborted ? !abortedBefore : status === 404 && id !== null;
        // A 404 proves that the server is reachable, so earlier connection failures do not count.
        tries = status === 404 && restart ? 1 : tries + 1;
        if (!(isUnavailable(error) || restart || status === 429) || tries > MAX_TRIES) throw error;
        abortedBefore ||= aborted;
        if (restart) [id, lastEventId, cut] = [null, null, false];
        if (status === 404) continue;
        await waitBeforeRetry(error, tries, onStatus, signal);
      }
    }
  } finally {
    if (id && signal.aborted) { // sent even while the page unloads; the answer does not matter
      call(`v1/generations/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
    }
  }
}

function start({ fields, image }, signal) {
  const body = { ...fields, stream: true };
  return image ? postImages("v1/completions", body, image, signal) : post("v1/samples", body, signal);
}

function resume({ fields }, id, lastEventId, signal) {
  const headers = lastEventId === null ? {} : { "Last-Event-ID": lastEventId };
  const repeated = Object.entries(fields).filter(([name]) => STREAM_FIELDS.includes(name));
  const query = repeated.length ? `?${new URLSearchParams(repeated)}` : "";
  return call(`v1/generations/${id}/events${query}`, { headers, signal });
}
