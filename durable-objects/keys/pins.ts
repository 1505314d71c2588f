/** How many refer to a key, so that it has to stay in memory. */
export class Pins {
  #count = 0;

  get isAny(): boolean {
    return this.#count > 0;
  }

  /** Adds one. The returned function takes it away; calling it again does nothing. */
  add(): () => void {
    this.#count += 1;
    let left = 1;
    return () => {
      this.#count -= left;
      left = 0;
    };
  }
}
