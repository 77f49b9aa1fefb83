/** The button "Share" of a drawing, and links that visitors post elsewhere. */

import { toHash } from "./address.js";
import { describeError, postJson, throwLoadError } from "./api.js";
import { downloadBlob, toPng } from "./pixels.js";
import { toCurl, toPython } from "./programs.js";
import { embedRecipe } from "./recipe.js";

/**
 * Return the absolute address of a link. Its fields are in the query instead of the hash, so that the
 * server can show a preview where the link is posted. The page converts such an address on load.
 */
function toUrl({ view, fields }) {
  const query = new URLSearchParams({ ...(view === "draw" ? {} : { view }), ...fields });
  return `${document.baseURI.split(/[?#]/)[0]}?${query}`;
}

/** Copy text to the clipboard; if the browser refuses, show it in a dialog and return false. */
async function copyText(text) {
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

/** Open the share dialog of a phone, or copy the link. Return true if the link was copied. */
export async function shareLink(link, text) {
  const url = toUrl(link);
  if (!hasShareDialog()) return copyText(text ? `${text} ${url}` : url);
  try {
    await navigator.share({ title: "Scanline", text, url });
  } catch (error) {
    // An AbortError means that the visitor cancelled.
    if (error.name !== "AbortError") return copyText(text ? `${text} ${url}` : url);
  }
  return false;
}

/** Return true on phones, whose share dialog visitors expect. */
export const hasShareDialog = () => Boolean(navigator.share) && matchMedia("(pointer: coarse)").matches;

const GIF_SECONDS = 3;
const PNG_SIZE = 560; // a saved picture is enlarged to at most this width
let menus = 0; // for unique ids

/** Return the name of a file with the pictures of a link, without its extension. */
export const fileName = ({ fields: { model, seed } }) => `scanline-${model}-${seed}`;

/** The button "Share", whose menu offers the link, the animation, the picture, and programs. */
export class ShareBar {
  /**
   * @param {HTMLElement} placeholder is replaced by the button
   * @param {() => import("./pixels.js").Picture[]} getPictures returns the finished pictures
   */
  constructor(placeholder, getPictures) {
    const bar = document.getElementById("share-bar").content.cloneNode(true).firstElementChild;
    placeholder.replaceWith(bar);
    this.bar = bar;
    this.getPictures = getPictures;
    this.status = bar.querySelector("[role=status]");
    this.menu = bar.querySelector("[popover]");
    this.menu.id = `share-menu-${menus}`;
    menus += 1;
    bar.querySelector("[data-share-open]").setAttribute("popovertarget", this.menu.id);
    const actions = { // each returns the message to show, or false for none
      link: async (link) => (await shareLink(link)) && "Link copied.",
      gif: (link) => this.saveGif(link),
      png: (link) => this.savePng(link),
      curl: async (link) => (await copyText(toCurl(link))) && "Command copied.",
      python: async (link) => (await copyText(toPython(link))) && "Program copied.",
    };
    for (const [name, act] of Object.entries(actions)) {
      this.button(name).addEventListener("click", async () => {
        this.menu.hidePopover();
        this.setStatus(name === "gif" ? "Making the animation …" : "");
        this.setStatus((await act(this.link).catch(describeError)) || "");
      });
    }
    if (hasShareDialog()) this.button("link").textContent = "Share the link …";
    this.setLink(null);
  }

  button(name) {
    return this.bar.querySelector(`[data-copy=${name}]`);
  }

  /** Return the finished pictures as one, and which of them it has: "The first 12 of 64 pictures". */
  async montage() {
    const pictures = this.getPictures();
    if (!pictures.length) throw new Error("Wait until a picture is finished.");
    const { MAX_PICTURES, montage } = await import("./montage.js").catch(throwLoadError);
    const { length } = pictures;
    return [montage(pictures), length > MAX_PICTURES && `The first ${MAX_PICTURES} of ${length} pictures`];
  }

  /** Save an animation, and return the message that says so. */
  async saveGif(link) {
    const [picture, part] = await this.montage();
    const { encodeGif } = await import("./gif.js").catch(throwLoadError);
    downloadBlob(encodeGif(picture, GIF_SECONDS), `${fileName(link)}.gif`);
    return part ? `${part} are in the animation.` : "Animation saved.";
  }

  /** Save a PNG, and return the message that says so. */
  async savePng(link) {
    const { view, fields } = link;
    const [picture, part] = await this.montage();
    const scale = Math.max(1, Math.floor(PNG_SIZE / picture.shape.width));
    const png = await toPng(picture, undefined, scale);
    // The view "Watch" has only the values of its picture, not the server's PNG.
    const drawn = picture.drawn ?? (await postJson("v1/samples", fields)).images[0].png;
    const file = await embedRecipe(png, drawn, scale);
    downloadBlob(file, `${fileName(link)}.png`);
    if (part) return `${part} saved. “Save all” has every one.`;
    // The other views open a dropped file instead of checking it.
    const canBeChecked = ["draw", "watch"].includes(view) && file.size > png.size;
    return `Picture saved.${canBeChecked ? " Drop it on this page to check it." : ""}`;
  }

  /**
   * Set the link to share.
   *
   * @param {{view: string, fields: object} | null} link null hides the bar
   * @param {boolean} singleRequest offer it as a command and a program too
   */
  setLink(link, singleRequest = true) {
    this.link = link;
    for (const name of ["curl", "python"]) this.button(name).hidden = !singleRequest;
    this.setStatus("");
    this.bar.hidden = link === null;
  }

  setStatus(text) {
    this.status.textContent = text;
  }
}
