/** Drawings as they come: server-sent events, and streams that survive a lost connection. */

import { ApiError, MAX_TRIES, call, isLost, waitOut } from "./api.js";

/** A drawing that was given up halfway. */
class GenerationAborted extends Error {}

/** Read server-sent events from a reply: yields {name, id, data}. */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
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
}

/**
 * Follow one drawing to its end, whatever happens to the connection.
 *
 * A lost stream is resumed where it stopped, with exponential back-off; a full server is asked again
 * when it said. A drawing that the server has let go, gave up as it shut down, or cancelled while
 * nobody read it, is drawn again, which gives the very same pixels since the request names its seed;
 * given up twice, it has failed.
 *
 * @param {() => Promise<Response>} open starts the drawing
 * @param {(event: {name: string, data: object}) => void} on hears its events, but no `error`
 * @param {(sentence: string) => void} say hears, in plain words, why nothing comes
 * @param {AbortSignal} signal cancels it, at the server too
 */
export async function follow(open, on, say, signal) {
  let [id, last, tries, broken, cut] = [null, null, 0, false, false];
  for (;;) {
    try {
      const response = id ? await resume(id, last, signal) : await open();
      if (tries > 0) say("Connected. Drawing …");
      for await (const event of readEvents(response)) {
        signal.throwIfAborted(); // what was read before that is of no use any more
        if (event.name === "error") throw new GenerationAborted(event.data.error.message);
        if (event.name === "image") cut ||= event.data.finish_reason !== "length";
        if (event.name === "completed" && cut) throw new GenerationAborted("the drawing was cancelled");
        tries = 0;
        last = event.id ?? last;
        if (event.name === "started") id = event.data.id;
        on(event);
        if (event.name === "completed") return;
      }
      throw new TypeError("the stream ended early");
    } catch (error) {
      if (signal.aborted) {
        // Nobody waits for the answer, and it is sent even as the page is left.
        if (id) call(`v1/generations/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
        throw error;
      }
      const status = error instanceof ApiError ? error.status : null;
      const forgotten = error instanceof GenerationAborted ? !broken : status === 404 && id !== null;
      // Where it knows nothing of the drawing, the server is there: the tries were for its absence.
      tries = status === 404 && forgotten ? 1 : tries + 1;
      if (!(isLost(error) || forgotten || status === 429) || tries > MAX_TRIES) throw error;
      broken ||= error instanceof GenerationAborted;
      if (forgotten) [id, last, cut] = [null, null, false];
      if (status === 404) continue;
      await waitOut(error, tries, say, signal);
    }
  }
}

function resume(id, last, signal) {
  const headers = last === null ? {} : { "Last-Event-ID": last };
  return call(`v1/generations/${id}/events`, { headers, signal });
}
