/** The address: which view is shown, and what brings its pictures back. */

export const VIEWS = ["draw", "complete", "inside", "play", "learn"];
const LATER_MS = 1000;

/** Read the address: the view and its query; null where it names no view, as `#main` does. */
export function readAddress() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  const view = name === "" ? "draw" : name;
  return VIEWS.includes(view) ? { view, query } : null;
}

/** Give the hash of a view with these fields. */
export function toHash(view, fields) {
  const query = String(new URLSearchParams(fields));
  return `#${view}${query && `?${query}`}`;
}

let later;
addEventListener("hashchange", () => clearTimeout(later)); // it leads elsewhere

/** Write an address; a change of view is a step that Back takes back. */
export function writeAddress(hash) {
  clearTimeout(later);
  if (hash === location.hash) return;
  const same = hash.split("?")[0] === `#${readAddress()?.view}`;
  try {
    history[same ? "replaceState" : "pushState"](null, "", hash);
  } catch { // Safari takes a hundred in ten seconds, which a key that is held down exceeds
    later = setTimeout(() => writeAddress(hash), LATER_MS);
  }
}
