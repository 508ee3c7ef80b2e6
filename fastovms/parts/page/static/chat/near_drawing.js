/** Draws messages when they come near the screen, as many as a frame has time for. */

import { onceAFrame } from "../answer/frame.js";

/** Milliseconds of a frame in which messages are drawn. */
const MAX_DRAWING = 6;
/** How far from the screen a message is near. */
const MARGIN = "1000px";

export class NearDrawing {
  /** @param {HTMLElement} place that scrolls. */
  constructor(place) {
    this.#observer = new IntersectionObserver((entries) => this.#meet(entries), { root: place, rootMargin: MARGIN });
  }

  #observer;
  #drawings = new Map();
  #met = [];
  #ask = onceAFrame(() => this.#draw());

  /**
   * @param {HTMLElement} node
   * @param {function(): void} draw is called once, when the node is near.
   */
  add(node, draw) {
    this.#drawings.set(node, draw);
    this.#observer.observe(node);
  }

  /** Forgets all nodes. */
  clear() {
    this.#observer.disconnect();
    this.#drawings.clear();
    this.#met = [];
  }

  #meet(entries) {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      this.#observer.unobserve(target);
      this.#met.push(target);
    }
    this.#ask();
  }

  #draw() {
    const end = performance.now() + MAX_DRAWING;
    while (this.#met.length && performance.now() < end) {
      const node = this.#met.shift();
      this.#drawings.get(node)?.();
      this.#drawings.delete(node);
    }
    if (this.#met.length) this.#ask();
  }
}
