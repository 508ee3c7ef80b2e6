/** Keeps texts in the browser, or in the page alone where the browser allows no storage or has no space. */

class Keeper {
  /** @param {"localStorage"|"sessionStorage"} kind */
  constructor(kind) {
    this.#kind = kind;
  }

  #kind;
  #inPage = new Map();

  /** @returns {string|null} null = nothing is kept by this name. */
  get(name) {
    try {
      return this.#inPage.get(name) ?? globalThis[this.#kind].getItem(name);
    } catch {
      return null;
    }
  }

  /**
   * @param {string} name
   * @param {string} text
   */
  set(name, text) {
    try {
      globalThis[this.#kind].setItem(name, text);
      this.#inPage.delete(name);
    } catch {
      this.#inPage.set(name, text);
    }
  }
}

/** What stays on the device. */
export const device = new Keeper("localStorage");

/** What stays as long as the tab. */
export const tab = new Keeper("sessionStorage");
