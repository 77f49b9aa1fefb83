/** The address bar: the view that is shown, and the fields that recreate its pictures. */

export const VIEWS = ["draw", "watch", "complete", "inside", "play", "learn"];
const RETRY_MS = 1000;
const MERGE_MS = 700; // drawings within this time share one history entry

/** Read the view and its query from the address; null if the hash names no view, as `#main`. */
export function readAddress() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  const view = name === "" ? "draw" : name;
  return VIEWS.includes(view) ? { view, query } : null;
}

/** Return the hash of a view with these fields. */
export function toHash(view, fields) {
  const query = String(new URLSearchParams(fields));
  return `#${view}${query && `?${query}`}`;
}

let retryTimer;
let lastPush = -Infinity;
addEventListener("hashchange", () => { // the visitor went back, forward or to a link
  clearTimeout(retryTimer); // this address replaces the one to be written
  lastPush = -Infinity;
});

/**
 * Write a hash to the address bar. A change of view adds a history entry, and so does a new drawing
 * (`push`), unless the last one was added just before: a slider that is moved with the arrow keys
 * draws many times.
 */
export function writeAddress(hash, push = false) {
  clearTimeout(retryTimer);
  if (hash === location.hash) return;
  const otherView = hash.split("?")[0] !== `#${readAddress()?.view}`;
  const recent = performance.now() - lastPush < MERGE_MS;
  try {
    if (otherView || (push && !recent)) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
    if (push) lastPush = performance.now();
  } catch { // Safari allows 100 calls per 10 s, fewer than a held key can cause
    retryTimer = setTimeout(() => writeAddress(hash, push), RETRY_MS);
  }
}
