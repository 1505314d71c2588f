import { DurableObject } from "cloudflare:workers";

/** The object that has what the limiter did: totals, history and top keys. There is one, and no decision asks it. */
export class StatsObject extends DurableObject {}
