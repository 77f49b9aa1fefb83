/** Ways to hand a drawing on: its link, and the same request for curl and for Python. */

import { toHash } from "./address.js";
import { key } from "./api.js";

const TOKEN = "SCANLINE_API_KEY"; // the key itself is never copied

/**
 * Give the whole address of a link. What the server can draw by itself is in its query, so that it
 * can show a picture where the link is posted; the page turns that into its own kind of address.
 */
function addressOf({ view, fields }) {
  const hash = toHash(view, fields);
  return new URL(view === "draw" ? hash.replace("#draw", "") : hash, document.baseURI.split("#")[0]).href;
}

/** Quote a word for a shell. */
const quote = (word) => `'${String(word).replaceAll("'", "'\\''")}'`;

/** Split a link into the request it stands for, and the picture it sends. */
function requestOf({ view, fields: { image, ...fields } }) {
  const path = view === "complete" ? "v1/completions" : "v1/samples";
  return { url: new URL(path, document.baseURI).href, fields, image };
}

/** Write a link's picture in the usual base64. */
function base64(image) {
  const text = image.replaceAll("-", "+").replaceAll("_", "/");
  return text.padEnd(4 * Math.ceil(text.length / 4), "=");
}

/** Write the request of a link as a command line that saves what comes as one PNG. */
function asCurl(link) {
  const { url, fields, image } = requestOf(link);
  const lines = [`curl -sSf ${quote(url)} -H 'Accept: image/png'`];
  if (key.value) lines.push(`-H "Authorization: Bearer $${TOKEN}"`);
  if (image) {
    lines.push("-F image=@picture.png");
    lines.push(Object.entries(fields).map(([name, value]) => `-F ${quote(`${name}=${value}`)}`)
      .join(" "));
  } else {
    lines.push(`-H 'Content-Type: application/json' -d ${quote(JSON.stringify(fields))}`);
  }
  lines.push("-o scanline.png");
  const picture = image ? `echo ${base64(image)} | base64 -d > picture.png\n` : "";
  return `${picture}${lines.join(" \\\n  ")}\n`;
}

/** Write the request of a link as a Python program that does the same. */
function asPython(link) {
  const { url, fields, image } = requestOf(link);
  const literal = JSON.stringify(fields).replaceAll('":', '": ').replaceAll(',"', ', "');
  const imports = [...(image ? ["base64"] : []), ...(key.value ? ["os"] : [])];
  const headers = key.value
    ? `{"Accept": "image/png", "Authorization": f"Bearer {os.environ['${TOKEN}']}"}`
    : '{"Accept": "image/png"}';
  return [
    ...imports.map((name) => `import ${name}`),
    ...(imports.length ? [""] : []),
    "import httpx",
    "",
    "reply = httpx.post(",
    `    ${JSON.stringify(url)},`,
    ...(image
      ? [
        `    files={"image": base64.b64decode("${base64(image)}")},`,
        `    data=${literal},`,
      ]
      : [`    json=${literal},`]),
    `    headers=${headers},`,
    "    timeout=60,",
    ")",
    'with open("scanline.png", "wb") as file:',
    "    file.write(reply.raise_for_status().content)",
    "",
  ].join("\n");
}

/** Copy a text; where the browser refuses, show it to be copied by hand. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.getElementById("copy-text");
    field.value = text;
    document.getElementById("copy-dialog").showModal();
    field.select();
    return false;
  }
}

/** Share a link as the system does on a phone, or copy it. */
export async function shareLink(link, text) {
  const url = addressOf(link);
  if (!systemShares()) return copy(text ? `${text} ${url}` : url);
  await navigator.share({ title: "Scanline", text, url }).catch(() => {}); // not shared after all
  return false;
}

/** Whether the system has a way to share that people expect: phones do. */
const systemShares = () => Boolean(navigator.share) && matchMedia("(pointer: coarse)").matches;

/** The buttons that hand a drawing on. */
export class ShareBar {
  /** @param {HTMLElement} place is replaced by the buttons */
  constructor(place) {
    const bar = document.getElementById("share-bar").content.cloneNode(true).firstElementChild;
    place.replaceWith(bar);
    this.bar = bar;
    this.status = bar.querySelector("[role=status]");
    const ways = {
      link: [shareLink, "Link copied."],
      curl: [async (link) => copy(asCurl(link)), "Command copied."],
      python: [async (link) => copy(asPython(link)), "Program copied."],
    };
    for (const [name, [act, done]] of Object.entries(ways)) {
      bar.querySelector(`[data-copy=${name}]`).addEventListener("click", async () => {
        this.say((await act(this.link)) ? done : "");
      });
    }
    if (systemShares()) bar.querySelector("[data-copy=link]").textContent = "Share …";
    this.offer(null);
  }

  /** Offer a link, its view and fields, or nothing for null; and as a command, if it is one. */
  offer(link, single = true) {
    this.link = link;
    for (const name of ["curl", "python"]) {
      this.bar.querySelector(`[data-copy=${name}]`).hidden = !single;
    }
    this.say("");
    this.bar.hidden = link === null;
  }

  say(sentence) {
    this.status.textContent = sentence;
  }
}
