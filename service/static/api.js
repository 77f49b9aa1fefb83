/** Calls to the server: the key, errors in plain words, and streams that survive a lost connection. */

const KEY = "scanline-key";
const MAX_TRIES = 8;
const FIRST_DELAY = 0.25;
const LONGEST_DELAY = 15;

/** What the server refused, in its own words. */
export class ApiError extends Error {
  /** @param {number} status @param {{message: string, code?: string}} error @param {number} retryAfter */
  constructor(status, error, retryAfter) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.retryAfter = retryAfter;
  }
}

/** Ask for the API key once; false where the person would rather not. */
function askForKey() {
  const dialog = document.getElementById("key-dialog");
  const field = document.getElementById("key");
  return new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "ok" && field.value.trim();
      if (given) sessionStorage.setItem(KEY, field.value.trim());
      resolve(Boolean(given));
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}

/** Fetch a path of this server; throws ApiError on a refusal, TypeError on a lost connection. */
export async function call(path, init = {}) {
  for (;;) {
    const headers = new Headers(init.headers);
    const key = sessionStorage.getItem(KEY);
    if (key) headers.set("Authorization", `Bearer ${key}`);
    const response = await fetch(path, { ...init, headers });
    if (response.ok) return response;
    if (response.status === 401 && (await askForKey())) continue;
    const body = await response.json().catch(() => null);
    const error = body?.error ?? { message: `the server answered ${response.status}` };
    throw new ApiError(response.status, error, Number(response.headers.get("Retry-After")) || 1);
  }
}

/** POST JSON and read JSON. */
export async function postJson(path, body, signal) {
  const response = await call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return response.json();
}

/** Read server-sent events from a reply: yields {name, id, data}. */
export async function* readEvents(response) {
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
      if (event.data !== null) yield event;
    }
  }
}

/** Wait, telling every second how many are left; rejects when the signal aborts. */
async function pause(seconds, signal, tell) {
  for (let left = seconds; left > 0; left -= 1) {
    tell(Math.ceil(left));
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, Math.min(left, 1) * 1000);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        reject(signal.reason);
      }, { once: true });
    });
  }
}

/**
 * Follow a drawing to its end, whatever happens to the connection.
 *
 * A lost stream is resumed where it stopped, with exponential back-off; a full server is asked again
 * when it said; a generation that the server has let go is drawn again, which gives the very same
 * pixels since the request names its seed.
 *
 * @param {() => Promise<Response>} open starts the drawing
 * @param {(event: {name: string, data: object}) => void} on hears its events
 * @param {(sentence: string) => void} say hears, in plain words, why nothing comes
 * @param {AbortSignal} signal cancels it, at the server too
 */
export async function follow(open, on, say, signal) {
  let id = null;
  let last = null;
  let tries = 0;
  for (;;) {
    try {
      const response = id ? await resume(id, last, signal) : await open();
      if (tries > 0) say("Connected. Drawing …");
      for await (const event of readEvents(response)) {
        tries = 0;
        last = event.id ?? last;
        if (event.name === "started") id = event.data.id;
        on(event);
        if (event.name === "completed" || event.name === "error") return;
      }
      throw new TypeError("the stream ended early");
    } catch (error) {
      if (signal.aborted) {
        if (id) await call(`v1/generations/${id}`, { method: "DELETE" }).catch(() => {});
        throw error;
      }
      tries += 1;
      const busy = error instanceof ApiError && [429, 503].includes(error.status);
      const forgotten = error instanceof ApiError && error.status === 404 && id !== null;
      const lost = error instanceof TypeError;
      if (!(busy || forgotten || lost) || tries > MAX_TRIES) throw error;
      if (forgotten) {
        id = last = null;
      } else if (busy) {
        await pause(error.retryAfter, signal, (left) =>
          say(`The server is full. Trying again in ${left} s …`));
      } else {
        const delay = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** (tries - 1));
        await pause(delay * (0.75 + Math.random() / 2), signal, (left) =>
          say(`Connection lost. Reconnecting in ${left} s …`));
      }
    }
  }
}

function resume(id, last, signal) {
  const headers = last === null ? {} : { "Last-Event-ID": last };
  return call(`v1/generations/${id}/events`, { headers, signal });
}

/** Say what went wrong, for a person. */
export function explain(error) {
  if (error instanceof ApiError) {
    return error.message.charAt(0).toUpperCase() + error.message.slice(1) + ".";
  }
  if (error instanceof TypeError) return "The server cannot be reached. Is it still running?";
  return String(error.message ?? error);
}
