/** Keeps a reader at the end of what grows; whoever has scrolled up is left in peace. */

/** Pixels from the end within which a reader is at the end. */
const NEAR_END = 80;

export class EndFollower {
  /**
   * @param {HTMLElement} place that scrolls.
   * @param {HTMLElement} content that grows in it.
   */
  constructor(place, content) {
    this.#place = place;
    place.addEventListener("scroll", () => this.#note());
    new ResizeObserver(() => this.#isAtEnd && this.toEnd()).observe(content);
  }

  #place;
  #isAtEnd = true;
  #height = 0;

  toEnd() {
    this.#isAtEnd = true;
    this.#place.scrollTop = this.#place.scrollHeight;
  }

  /** Tells a reader's scrolling from what the browser does where a message becomes as high as it is. */
  #note() {
    const { scrollHeight, scrollTop, clientHeight } = this.#place;
    const hasGrown = scrollHeight !== this.#height;
    this.#height = scrollHeight;
    if (this.#isAtEnd && hasGrown) this.toEnd();
    else this.#isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
  }
}
