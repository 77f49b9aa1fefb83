/** A canvas of a picture's pixels whose pixels can be touched, with one of them marked. */

/** Wraps a canvas and the mark beside it. */
export class PixelCanvas {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {{touch: (p: number) => void, release: () => void} | null} on hears of pixels touched
   */
  constructor(canvas, on = null) {
    this.canvas = canvas;
    this.sign = canvas.parentElement.querySelector(".marker");
    if (!on) return;
    const touch = (event) => on.touch(this.pixelAt(event));
    const drags = ({ pointerType }) => pointerType !== "touch"; // a finger may only scroll
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && drags(event)) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drags(event) && canvas.hasPointerCapture(event.pointerId)) touch(event);
    });
    canvas.addEventListener("click", (event) => {
      touch(event);
      on.release();
    });
  }

  pixelAt(event) {
    const { canvas } = this;
    const box = canvas.getBoundingClientRect();
    const part = (at, from, size, count) =>
      Math.min(count - 1, Math.max(0, Math.floor(((at - from) / size) * count)));
    return canvas.width * part(event.clientY, box.top, box.height, canvas.height)
      + part(event.clientX, box.left, box.width, canvas.width);
  }

  /** Mark a pixel. */
  mark(p) {
    const { width, height } = this.canvas;
    const place = { x: (p % width) / width, y: Math.floor(p / width) / height, w: 1 / width, h: 1 / height };
    for (const [name, value] of Object.entries(place)) {
      this.sign.style.setProperty(`--${name}`, `${100 * value}%`);
    }
  }
}
