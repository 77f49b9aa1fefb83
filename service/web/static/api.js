/** Calls to the server, and its errors in plain words. */

import { ApiKey } from "./api-key.js";

export const MAX_TRIES = 8;
const FIRST_DELAY = 0.25;
const LONGEST_DELAY = 15;

export const key = new ApiKey();

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

/** Fetch a path of this server; throws ApiError on a refusal, TypeError on a lost connection. */
export async function call(path, init = {}) {
  for (;;) {
    const headers = new Headers(init.headers);
    const sent = key.value;
    if (sent) headers.set("Authorization", `Bearer ${inBytes(sent)}`);
    const response = await fetch(path, { ...init, headers });
    if (response.ok) return response;
    if (response.status === 401 && (await key.ask(sent))) continue;
    const body = await response.json().catch(() => null);
    const error = body?.error ?? { message: `the server answered ${response.status}` };
    throw new ApiError(response.status, error, Number(response.headers.get("Retry-After")) || 1);
  }
}

/** Write a text as a header takes it: its bytes in UTF-8, each as a character. */
const inBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

/**
 * Send a request again, when the server says, if it is too busy; unless not `lost`, if it is away.
 * `say` hears, in plain words, why nothing comes.
 */
export async function patiently(send, signal, { say = () => {}, lost = true, most = MAX_TRIES } = {}) {
  for (let tries = 1; ; tries += 1) {
    try {
      const reply = await send();
      if (tries > 1) say("Connected.");
      return reply;
    } catch (error) {
      if (!(error.status === 429 || (lost && isLost(error))) || tries === most) throw error;
      await waitOut(error, tries, say, signal);
    }
  }
}

/** Wait before another try, and say why. */
export async function waitOut(error, tries, say, signal) {
  const busy = error.status === 429;
  const why = busy ? "The server is full. Trying again" : "Connection lost. Reconnecting";
  const delay = busy ? error.retryAfter : backOff(tries);
  for (let left = delay; left > 0; left -= 1) {
    const whole = Math.ceil(left);
    if (left === delay || whole % 5 === 0) say(`${why} in ${whole} s …`); // it is read aloud
    await pause(Math.min(left, 1), signal);
  }
}

/** Whether a server that is gone, or comes or goes, is the reason. */
export const isLost = (error) => error instanceof TypeError || error.status > 501;

/** Give the seconds to wait before a try: ever more, and never quite the same for everyone. */
function backOff(tries) {
  return Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** (tries - 1)) * (0.75 + Math.random() / 2);
}

/** Wait, unless cancelled. */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

/** POST JSON; gives the reply. */
export function post(path, body, signal) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

/** POST JSON and read JSON. */
export async function postJson(path, body, signal) {
  return (await post(path, body, signal)).json();
}

/** POST a form of fields and a picture, or several; gives the reply. */
export function postPicture(path, fields, pngs, signal) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.set(name, value);
  for (const png of [pngs].flat()) body.append("image", png, "picture.png");
  return call(path, { method: "POST", body, signal });
}

/** Have a picture drawn, all at once. */
export async function drawn(model, fields, signal, say) {
  const asked = { model: model.id, output: "values", ...fields };
  const { images: [{ values }] } =
    await patiently(() => postJson("v1/samples", asked, signal), signal, { say });
  return { shape: model, values: Uint8Array.from(values), known: null };
}

/** Have pictures measured, and what each of their pixels cost. */
export async function score(model, pngs, label, signal, say) {
  const fields = { model: model.id, per_pixel: "true", ...(label ? { label } : {}) };
  const reply = await patiently(() => postPicture("v1/score", fields, pngs, signal), signal, { say });
  return (await reply.json()).data;
}

/** Fail where a part of the page did not come: Chromium remembers that an import failed. */
export function missing() {
  throw new Error("A part of this page did not come. Reload the page.");
}

/** Say what went wrong, for a person. */
export function explain(error) {
  if (error instanceof ApiError && error.status === 401) return "This server asks for a key.";
  if (error instanceof ApiError && error.status > 501) {
    return "The server is starting or shutting down. Try again in a moment.";
  }
  if (error instanceof TypeError) return "The server cannot be reached. Is it still running?";
  const sentence = String(error.message);
  const reload = error.code === "model_not_found" ? " Reload the page." : "";
  const end = sentence.endsWith(".") ? "" : ".";
  return sentence.charAt(0).toUpperCase() + sentence.slice(1) + end + reload;
}
