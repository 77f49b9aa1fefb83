/** Pictures with dark strokes on light paper, which a model that draws light on dark cannot continue. */

import { pixelColour, pixelCount } from "./pixels.js";

const DARK = 48; // a background is dark if its luma (0 to 255) is below this
const LIGHTER = 128; // paper is light if its luma exceeds that of the background by this

/** Offer to invert the picture that was uploaded. */
export class PaperOffer {
  /** @param {HTMLElement} element @param {(paper: number[]) => void} onAccept inverts the picture */
  constructor(element, onAccept) {
    this.element = element;
    element.querySelector("button").addEventListener("click", () => {
      this.hide();
      onAccept(this.paper);
    });
  }

  hide() {
    this.element.hidden = true;
  }

  /** Show the offer if the picture is dark on light and the model's examples are not. */
  update(picture, examples) {
    const background = lightness(backgroundColour(examples));
    // Dark ink on transparent paper would be drawn on as dark ink on black.
    const darkInk = picture.known.includes(0) && lightness(inkColour(picture)) < LIGHTER;
    this.paper = darkInk ? [255, 255, 255] : backgroundColour([picture]);
    this.element.hidden = background >= DARK || lightness(this.paper) - background < LIGHTER;
  }
}

/** Return the background colour of pictures: the median of their known border pixels. */
export function backgroundColour(pictures) {
  const border = pictures.flatMap((picture) => {
    const { width, height } = picture.shape;
    return Array.from({ length: pixelCount(picture.shape) }, (_, p) => p)
      .filter((p) => picture.known?.[p] !== 0
        && (p < width || p >= width * (height - 1) || p % width === 0 || p % width === width - 1))
      .map((p) => pixelColour(picture, p));
  });
  return [0, 1, 2].map((c) => {
    const sorted = border.map((rgb) => rgb[c]).sort((a, b) => a - b);
    return sorted[sorted.length >> 1] ?? 0;
  });
}

/** Return the mean colour of the known pixels of a picture: its ink, if the paper is transparent. */
function inkColour(picture) {
  const known = Array.from({ length: pixelCount(picture.shape) }, (_, p) => p)
    .filter((p) => picture.known?.[p] !== 0).map((p) => pixelColour(picture, p));
  return [0, 1, 2].map((c) => known.reduce((sum, rgb) => sum + rgb[c], 0) / (known.length || 1));
}

/** Return the luma of a colour, 0 to 255. */
export const lightness = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;
