/** The built bundle with an object that loses, delays or doubles messages, or loses its memory. */
import * as weir from "weir.js";

const LATE_MS = 700;

export class LimiterObject extends weir.LimiterObject {
  limit(...args) {
    return this.#badly(() => super.limit(...args));
  }

  reserve(...args) {
    return this.#badly(() => super.reserve(...args));
  }

  giveBack(...args) {
    return this.#badly(() => super.giveBack(...args));
  }

  async #badly(handle) {
    const answer = await handle();
    const fate = Math.random();
    if (fate < 0.02) throw new Error("the answer is lost");
    if (fate < 0.04) await new Promise((done) => setTimeout(done, LATE_MS * Math.random()));
    else if (fate < 0.06) await handle();
    else if (fate < 0.065) this.ctx.abort("its memory is lost");
    return answer;
  }
}

export const Limiter = weir.Limiter;
export default weir.default;
