/** HTTP client of the Scanline API: requests, retries and readable errors. */

import { ApiKey } from "./api-key.js";

export const MAX_TRIES = 8;
const BUSY = { // why a request is refused for now, by the error's code
  quota_exceeded: "You have drawn as much as you may in a minute. Trying again",
  too_many_in_flight: "Your earlier pictures are still being drawn. Trying again",
};
const FIRST_DELAY = 0.25; // seconds
const LONGEST_DELAY = 15;

export const apiKey = new ApiKey();

/** An error response of the server, with the server's message. */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status
   * @param {{message: string, code?: string}} error
   * @param {number} retryAfter seconds
   */
  constructor(status, error, retryAfter) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.retryAfter = retryAfter;
  }
}

/** Thrown if the connection to the server fails. */
export class ConnectionError extends Error {}

/**
 * Await a network operation. Browsers report a lost connection as a TypeError, as mistakes in a program. A
 * SyntaxError is a reply that is not JSON: the sign-in page of a network, instead of the server's reply.
 */
export const fromNetwork = (promise) => promise.catch((error) => {
  const lost = error instanceof TypeError || error instanceof SyntaxError;
  throw lost ? new ConnectionError(error.message) : error;
});

/** Read the JSON of a response. */
export const readJson = (response) => fromNetwork(response.json());

/**
 * Fetch a path of this server, asking the visitor for an API key if the server requires one.
 *
 * @throws {ApiError} on an error response
 * @throws {ConnectionError} if the connection fails
 */
export async function call(path, init = {}) {
  for (;;) {
    const headers = new Headers(init.headers);
    const sent = apiKey.value;
    if (sent) headers.set("Authorization", `Bearer ${toHeaderValue(sent)}`);
    const response = await fromNetwork(fetch(path, { ...init, headers }));
    if (response.ok) return response;
    if (response.status === 401 && (await apiKey.prompt(sent))) continue;
    const body = await response.json().catch(() => null);
    // The error of a proxy may have another form.
    const error = body?.error?.message ? body.error : { message: `the server answered ${response.status}` };
    throw new ApiError(response.status, error, Number(response.headers.get("Retry-After")) || 1);
  }
}

/** Encode text for a header: one character per UTF-8 byte. */
const toHeaderValue = (text) => String.fromCharCode(...new TextEncoder().encode(text));

/**
 * Send a request, and repeat it while the server is busy (429) or unreachable.
 *
 * @param {() => Promise<Response>} send
 * @param {AbortSignal} signal
 * @param {object} options
 * @param {(text: string) => void} options.onStatus receives the reason of each wait
 * @param {boolean} options.retryLost also repeat if the server is unreachable
 */
export async function withRetries(send, signal, { onStatus = () => {}, retryLost = true } = {}) {
  for (let tries = 1; ; tries += 1) {
    try {
      const response = await send();
      if (tries > 1) onStatus("Connected.");
      return response;
    } catch (error) {
      const retriable = error.status === 429 || (retryLost && isUnavailable(error));
      if (!retriable || tries === MAX_TRIES) throw error;
      await waitBeforeRetry(error, tries, onStatus, signal);
    }
  }
}

/** Wait before the next try, and report the reason and the time. */
export async function waitBeforeRetry(error, tries, onStatus, signal) {
  const busy = error.status === 429;
  const reason = busy ? (BUSY[error.code] ?? "The server is full. Trying again")
    : "Connection lost. Reconnecting";
  const delay = busy ? error.retryAfter : backoff(tries);
  onStatus(`${reason} in ${Math.ceil(delay)} s …`);
  await pause(delay, signal);
}

/** Return true if the server is unreachable, starting or shutting down. */
export const isUnavailable = (error) => error instanceof ConnectionError || error.status > 501;

/** Return the seconds before a try: exponential backoff with jitter. */
function backoff(tries) {
  return Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** (tries - 1)) * (0.75 + Math.random() / 2);
}

/** Wait; reject if the signal aborts. */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, 1000 * seconds);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** POST JSON and return the response. */
export function post(path, body, signal) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

/** POST JSON and return the JSON of the response. */
export async function postJson(path, body, signal) {
  return readJson(await post(path, body, signal));
}

/** POST a multipart form with one PNG or several, and return the response. */
export function postImages(path, fields, pngs, signal) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.set(name, value);
  for (const png of [pngs].flat()) body.append("image", png, "picture.png");
  return call(path, { method: "POST", body, signal });
}

/** Draw one picture and return it, without streaming. */
export async function drawPicture(model, fields, signal, onStatus) {
  const body = { model: model.id, output: "values", ...fields };
  const { images: [{ values }] } =
    await withRetries(() => postJson("v1/samples", body, signal), signal, { onStatus });
  return { shape: model, values: Uint8Array.from(values), known: null };
}

/** Return the likelihood of each picture, with the bits of every pixel. */
export async function scoreImages(model, pngs, label, signal, onStatus) {
  const fields = { model: model.id, per_pixel: "true", ...(label ? { label } : {}) };
  const response = await withRetries(
    () => postImages("v1/score", fields, pngs, signal), signal, { onStatus });
  return (await readJson(response)).data;
}

/**
 * Return the distributions of a pixel's channels, up to the channel of the next value.
 *
 * @param {object} model
 * @param {number[]} values so far, which may end with channels of the pixel itself
 * @param {string | undefined} label
 * @param {boolean} guided also return those without the label
 * @param {AbortSignal | null} signal
 * @param {object} options of `withRetries`
 * @returns {Promise<{conditional: number[][], unconditional: number[][] | null}>}
 */
export async function fetchDistributions(model, values, label, guided, signal, options) {
  const body = { model: model.id, values, unconditional: guided, ...(label ? { label } : {}) };
  const { channels } = await withRetries(
    () => postJson("v1/distribution/pixel", body, signal), signal, options);
  return {
    conditional: channels.map(({ probabilities }) => probabilities),
    unconditional: guided ? channels.map(({ unconditional }) => unconditional) : null,
  };
}

/** Throw an error for a module that did not load; Chromium never retries a failed import. */
export function throwLoadError() {
  throw new Error("A part of this page did not load. Reload the page.");
}

/** Describe an error in plain words. */
export function describeError(error) {
  if (error instanceof ApiError && error.status === 401) return "This server needs an API key. Try again to enter it.";
  if (error instanceof ApiError && error.status > 501) {
    return "The server is starting or shutting down. Try again in a moment.";
  }
  if (error instanceof ConnectionError) {
    return "The server cannot be reached. Check your connection and try again.";
  }
  const sentence = String(error.message);
  const reload = error.code === "model_not_found" ? " Reload the page." : "";
  const end = sentence.endsWith(".") ? "" : ".";
  return sentence.charAt(0).toUpperCase() + sentence.slice(1) + end + reload;
}
