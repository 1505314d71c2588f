/** The built bundle with an object of before there were reservations, as it may be while a deployment is rolled out. */
import * as weir from "weir.js";

export class LimiterObject extends weir.LimiterObject {}
Object.defineProperty(LimiterObject.prototype, "reserve", { value: undefined });
Object.defineProperty(LimiterObject.prototype, "giveBack", { value: undefined });

export const Limiter = weir.Limiter;
export default weir.default;
