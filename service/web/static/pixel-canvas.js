/** A canvas of picture pixels that can be clicked, with a marker on one of them. */

/** Wraps a canvas and its marker element. */
export class PixelCanvas {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {{onPick: (p: number) => void, onRelease: () => void} | null} handlers
   */
  constructor(canvas, handlers = null) {
    this.canvas = canvas;
    this.marker = canvas.parentElement.querySelector(".marker");
    if (!handlers) return;
    const pick = (event) => handlers.onPick(this.pixelAt(event));
    const canDrag = ({ pointerType }) => pointerType !== "touch"; // a finger may be scrolling
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && canDrag(event)) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canDrag(event) && canvas.hasPointerCapture(event.pointerId)) pick(event);
    });
    canvas.addEventListener("click", (event) => {
      pick(event);
      handlers.onRelease();
    });
  }

  pixelAt(event) {
    const { canvas } = this;
    const box = canvas.getBoundingClientRect();
    const index = (at, from, size, count) =>
      Math.min(count - 1, Math.max(0, Math.floor(((at - from) / size) * count)));
    return canvas.width * index(event.clientY, box.top, box.height, canvas.height)
      + index(event.clientX, box.left, box.width, canvas.width);
  }

  /** Move the marker to pixel `p`. */
  mark(p) {
    const { width, height } = this.canvas;
    const box = { x: (p % width) / width, y: Math.floor(p / width) / height, w: 1 / width, h: 1 / height };
    for (const [name, value] of Object.entries(box)) {
      this.marker.style.setProperty(`--${name}`, `${100 * value}%`);
    }
  }
}
