/** The request of a drawing as a curl command and as a Python program. */

import { apiKey } from "./api.js";

const KEY_VARIABLE = "SCANLINE_API_KEY"; // the key itself is never copied

/** Quote a word for a POSIX shell. */
const shellQuote = (word) => `'${String(word).replaceAll("'", "'\\''")}'`;

/** Return the API request of a link: its URL, its fields, and the picture that it sends. */
function toRequest({ view, fields: { image, ...fields } }) {
  const path = view === "complete" ? "v1/completions" : "v1/samples";
  return { url: new URL(path, document.baseURI).href, fields, image };
}

/** Convert URL-safe base64 to standard base64. */
function toStandardBase64(image) {
  const text = image.replaceAll("-", "+").replaceAll("_", "/");
  return text.padEnd(4 * Math.ceil(text.length / 4), "=");
}

/** Return a curl command that saves the images of a link as one PNG. */
export function toCurl(link) {
  const { url, fields, image } = toRequest(link);
  const lines = [`curl -sSf ${shellQuote(url)} -H 'Accept: image/png'`];
  if (apiKey.value) lines.push(`-H "Authorization: Bearer $${KEY_VARIABLE}"`);
  if (image) {
    lines.push("-F image=@picture.png");
    lines.push(Object.entries(fields).map(([name, value]) => `-F ${shellQuote(`${name}=${value}`)}`)
      .join(" "));
  } else {
    lines.push(`-H 'Content-Type: application/json' -d ${shellQuote(JSON.stringify(fields))}`);
  }
  lines.push("-o scanline.png");
  const picture = image ? `echo ${toStandardBase64(image)} | base64 -d > picture.png\n` : "";
  return `${picture}${lines.join(" \\\n  ")}\n`;
}

/** Return a Python program that saves the images of a link as one PNG. */
export function toPython(link) {
  const { url, fields, image } = toRequest(link);
  const literal = JSON.stringify(fields).replaceAll('":', '": ').replaceAll(',"', ', "');
  const imports = [...(image ? ["base64"] : []), ...(apiKey.value ? ["os"] : [])];
  const headers = apiKey.value
    ? `{"Accept": "image/png", "Authorization": f"Bearer {os.environ['${KEY_VARIABLE}']}"}`
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
        `    files={"image": base64.b64decode("${toStandardBase64(image)}")},`,
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
