/** Does what changes the page once a frame, however often it is asked for. */

/**
 * @param {function(): void} draw
 * @returns {function(): void} asks for a drawing; calls before the next frame are one.
 */
export function onceAFrame(draw) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      draw();
    });
  };
}
