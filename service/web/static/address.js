/** The address bar: the view that is shown, and the fields that recreate its pictures. */

export const VIEWS = ["draw", "complete", "inside", "play", "learn"];
const RETRY_MS = 1000;

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
addEventListener("hashchange", () => clearTimeout(retryTimer)); // a newer address replaces it

/** Write a hash to the address bar. Only a change of view adds a history entry. */
export function writeAddress(hash) {
  clearTimeout(retryTimer);
  if (hash === location.hash) return;
  const same = hash.split("?")[0] === `#${readAddress()?.view}`;
  try {
    history[same ? "replaceState" : "pushState"](null, "", hash);
  } catch { // Safari allows 100 calls per 10 s, fewer than a held key can cause
    retryTimer = setTimeout(() => writeAddress(hash), RETRY_MS);
  }
}
