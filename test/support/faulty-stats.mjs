/** The built bundle with a statistics object that loses messages and answers, hangs, and loses its memory. */
import * as weir from "weir.js";

/** The first messages fail, each in another way. */
const FATES = ["lost", "hangs", "unanswered", "dies", "lost", "unanswered"];
let pushes = 0;

export class StatsObject extends weir.StatsObject {
  async push(message) {
    const fate = FATES[pushes];
    pushes += 1;
    if (fate === "lost") throw new Error("the message is lost");
    if (fate === "hangs") await new Promise(() => {});
    const receipt = super.push(message);
    if (fate === "unanswered") throw new Error("the answer is lost");
    if (fate === "dies") this.ctx.abort("its memory is lost");
    return receipt;
  }
}

export const { Limiter, LimiterObject, CatalogObject } = weir;
export default weir.default;
