/** A campaign of the attacker of attack-draws.ts, and a neighbour that measures the effects. */
import { readdirSync } from "node:fs";
import { Agent, request } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { serve, type Serving } from "../../scripts/workerd.ts";
import {
  Drawer,
  HOT_KEY,
  Learned,
  NEIGHBOUR_KEY,
  NEIGHBOUR_SECRET,
  OF_ALL,
  PREFIX,
  RIGHTS_FIRST,
  type Round,
} from "./attack-draws.ts";
import { tokenEntry, tokenOf } from "./callers.ts";
import type { Operations } from "./fuzz/openapi-operations.ts";
import { inMilliseconds } from "./milliseconds.ts";

type Random = () => number;

const QUOTA = 1_000_000;
/** A unit comes back in 52 minutes, so the rest is known to the unit. */
const SLOW = { algorithm: "token-bucket", limit: 830, burst: QUOTA, window: "30d", reservation: "off" };
const PATIENT = { deadlineMs: 20_000 };
const ONE_OBJECT = { objects: 1, ...PATIENT };
const POLICIES = {
  api: { ...SLOW, ...ONE_OBJECT },
  address: { ...SLOW, keyKind: "ip", ...ONE_OBJECT },
  hot: { algorithm: "token-bucket", limit: 100_000, window: "1s", ...ONE_OBJECT },
  apart: { algorithm: "token-bucket", limit: QUOTA, window: "30d", ...PATIENT },
  slots: { algorithm: "concurrency", limit: 50, ttl: "2s", maxTtl: "5s", maxWait: "200ms", ...ONE_OBJECT },
  mutex: { algorithm: "concurrency", limit: 1, ttl: "2s", ...PATIENT },
  busy: {
    algorithm: "token-bucket",
    limit: QUOTA,
    window: "30d",
    shed: { good: 0.1, bad: 0.3, after: "1ms", over: "40s" },
    ...ONE_OBJECT,
  },
};
/** Few, so that a process of the tests can exceed them. */
const OBJECT_BOUNDS = { startsAtOnce: 16, inMemory: 200 };
const FILES_OF_AN_OBJECT = 3;

/** The weak tokens, with their scopes and keys. */
const WEAK = {
  limiter: { scopes: ["limit"], keyPrefix: PREFIX },
  reserver: { scopes: ["limit", "reserve"], keyPrefix: PREFIX },
  teller: { scopes: ["metrics"], keyPrefix: PREFIX },
  manager: { scopes: ["limit", "admin"], keyPrefix: PREFIX },
} as const;
const TOKENS = [
  ...Object.entries(WEAK).map(([name, grant]) => tokenEntry(name, grant)),
  // May write any document, but only makes dry runs.
  tokenEntry("author", { scopes: ["admin"] }),
  tokenEntry("neighbour"),
  tokenEntry("owner", { scopes: ["limit", "admin"] }),
];
export interface Sent {
  readonly status: number;
  readonly text: string;
  readonly tookMs: number;
}

/** No answer is so late, unless the limiter hangs. */
const MAX_ANSWER_MS = 120_000;

/** Sends over connections that stay open. */
export class Sender {
  readonly #url: string;
  readonly #agent: Agent;

  constructor(url: string, connections: number) {
    this.#url = url;
    this.#agent = new Agent({ keepAlive: true, maxSockets: connections });
  }

  send(token: string, method: string, path: string, body?: string): Promise<Sent> {
    const length = body === undefined ? {} : { "content-type": "application/json" };
    const headers = { ...(token !== "nobody" && { authorization: `Bearer ${tokenOf(token)}` }), ...length };
    return new Promise((resolve, reject) => {
      const fromMs = performance.now();
      const sent = request(`${this.#url}${path}`, { method, agent: this.#agent, headers }, (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (chunk: string) => (text += chunk));
        response.on("error", reject);
        response.on("end", () =>
          resolve({ status: response.statusCode ?? 0, text, tookMs: performance.now() - fromMs }),
        );
      });
      sent.on("error", reject);
      // Of whoever hangs the call is to be named.
      sent.setTimeout(MAX_ANSWER_MS, () =>
        sent.destroy(new Error(`${method} ${path} by ${token} is not answered: ${body?.slice(0, 500)}`)),
      );
      sent.end(body);
    });
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** Serves a bundle to a campaign. @param main the path of the bundle */
export async function serveAttacked(stateDir: string, main?: string): Promise<Serving> {
  return await serve({
    stateDir,
    policies: inMilliseconds(POLICIES),
    apiTokens: JSON.stringify(TOKENS),
    objectBounds: JSON.stringify(OBJECT_BOUNDS),
    ...(main !== undefined && { main, hasDeploymentObjects: true }),
    onOutput: () => undefined,
  });
}

/** The neighbour's answers and expectations. */
export class Neighbour {
  readonly #sender: Sender;
  readonly #random: Random;
  readonly found = new Map<string, string>();
  /** Durations of its calls in milliseconds, since this was emptied. */
  tookMs: number[] = [];
  calls = 0;
  /** Its calls on the hot key, and those decided without its object, since this was emptied. */
  hot = { calls: 0, local: 0 };
  #taken = 0;
  #isAsking = false;

  constructor(sender: Sender, random: Random) {
    this.#sender = sender;
    this.#random = random;
  }

  async #ask(method: string, path: string, body: object): Promise<Record<string, unknown>> {
    const sent = await this.#sender.send("neighbour", method, path, JSON.stringify(body));
    this.tookMs.push(sent.tookMs);
    this.calls += 1;
    if (sent.status !== 200)
      this.found.set(`the neighbour is answered ${path}`, `${sent.status} ${sent.text.slice(0, 200)}`);
    return sent.status === 200 ? (JSON.parse(sent.text) as Record<string, unknown>) : {};
  }

  /** Its objects start one after the other: beside a flood of starts a caller may have two at once. */
  async begin(): Promise<void> {
    for (const policy of ["api", "address", "apart", "hot"])
      await this.#ask("POST", "/v1/limit", { policy, key: NEIGHBOUR_KEY, cost: 0 });
  }

  /** Makes calls until `isOver`. */
  async live(isOver: () => boolean): Promise<void> {
    const limit = (policy: string, fields: object = {}) =>
      this.#ask("POST", "/v1/limit", { policy, key: NEIGHBOUR_KEY, ...fields });
    while (!isOver()) {
      const draw = this.#random();
      if (draw < 0.3 && !this.#isAsking) await this.#takeExactly(limit);
      else if (draw < 0.5) this.#expect(await limit("address"), "limit", QUOTA);
      else if (draw < 0.65) {
        const same = { idempotencyKey: NEIGHBOUR_SECRET, cost: 2 };
        const answers = [await limit("address", same), await limit("address", same)];
        this.#expect(answers[1] ?? {}, "remaining", answers[0]?.["remaining"]);
      } else if (draw < 0.7) await limit("apart");
      else await this.#takeHot();
    }
  }

  /** Takes its own units one by one: the rest is known to the unit. */
  async #takeExactly(limit: (policy: string) => Promise<Record<string, unknown>>): Promise<void> {
    this.#isAsking = true;
    const answer = await limit("api");
    this.#taken += 1;
    this.#expect(answer, "remaining", QUOTA - this.#taken);
    this.#isAsking = false;
  }

  /** Reports that a key of its own is busy. */
  async report(): Promise<void> {
    await this.#ask("POST", "/v1/limit", { policy: "busy", key: REPORTED_KEY, cost: 0, utilization: 1 });
  }

  async #takeHot(): Promise<void> {
    const { source } = await this.#ask("POST", "/v1/limit", { policy: "hot", key: HOT_KEY });
    this.hot.calls += 1;
    if (source !== "object") this.hot.local += 1;
  }

  #expect(answer: Record<string, unknown>, field: string, expected: unknown): void {
    if (answer[field] === undefined || answer[field] === expected) return;
    this.found.set(
      `the neighbour's ${field} is its own`,
      `${JSON.stringify(answer[field])}, not ${JSON.stringify(expected)}`,
    );
  }

  /** Whether its own overload sheds, and its idempotency keys work. */
  async feels(): Promise<void> {
    let shed = 0;
    for (let number = 0; number < 400; number += 1) {
      const busy = { policy: "busy", key: NEIGHBOUR_KEY, priority: "low", utilization: 1 };
      if ((await this.#ask("POST", "/v1/limit", busy))["reason"] === "shed") shed += 1;
      await sleep(5);
    }
    if (shed === 0) this.found.set("the neighbour sheds", "nothing");
    for (let number = 0; number < 10; number += 1)
      for (const policy of ["api", "address"]) {
        const call = { policy, key: NEIGHBOUR_KEY, idempotencyKey: `${NEIGHBOUR_SECRET} ${number}` };
        const first = await this.#ask("POST", "/v1/limit", call);
        this.#expect(await this.#ask("POST", "/v1/limit", call), "remaining", first["remaining"]);
      }
  }
}

/** The number of the process's open files. */
export function filesOf({ process: { pid } }: Serving): number {
  return readdirSync(`/proc/${pid}/fd`).length;
}

export interface Plan {
  readonly serving: Serving;
  readonly operations: Operations;
  readonly rounds: readonly Round[];
  readonly random: Random;
  /** The most simultaneous calls of the attacker. */
  readonly atOnce: number;
  /** For benchmarks: the shortest round, in milliseconds. Absent: as long as its calls take. */
  readonly leastMs?: number;
  /** Called after each round. Returns whether to stop. */
  readonly after?: (round: Round, neighbour: Neighbour, found: Campaign["found"]) => Promise<boolean>;
}

/** The calls of a round. Some bounds are a thousand of something, and some calls carry a megabyte. */
function callsOf(round: Round): number {
  const {
    operation: { id },
    part,
    kind,
  } = round;
  if (id === "putCatalog" && kind === "most") return 3;
  if (part === "query") return 16;
  // Units of isolates last some seconds, and so does their knowledge of load shedding.
  if (id === "reserve" && part === "wanted" && kind === "most") return 12_000;
  if (isFloodOfReports(round)) return 6_600;
  return kind === "new" || id === "reserve" ? 1_500 : 48;
}
/** The neighbour's calls on a hot key: of this many, isolates decide some. */
const ENOUGH = 50;
const NEIGHBOURS = 4;

/** The calls and findings: broken laws, by their text, with an example. */
export interface Campaign {
  readonly found: ReadonlyMap<string, string>;
  readonly calls: number;
  readonly neighbour: Neighbour;
  readonly statuses: ReadonlyMap<string, ReadonlySet<number>>;
}

/** Makes all rounds, beside the neighbour. */
export async function campaign(plan: Plan): Promise<Campaign> {
  const { serving, operations, rounds, random, atOnce, leastMs = 0, after } = plan;
  const attacker = new Sender(serving.url, atOnce);
  const quiet = new Sender(serving.url, NEIGHBOURS);
  const neighbour = new Neighbour(quiet, random);
  const found = new Map<string, string>();
  const statuses = new Map<string, Set<number>>();
  const before = await ownerSees(quiet);
  const learned = new Learned();
  let isOver = false;
  let calls = 0;
  await neighbour.begin();
  const living = Promise.all(Array.from({ length: NEIGHBOURS }, () => neighbour.live(() => isOver)));
  const note = (law: string, example: string) => found.has(law) || found.set(law, example.slice(0, 600));
  // Files of the process, its connections, and its objects: in memory, starting, catalog, statistics.
  const maxObjects = OBJECT_BOUNDS.inMemory + OBJECT_BOUNDS.startsAtOnce + 2;
  const maxFiles = filesOf(serving) + atOnce + NEIGHBOURS + FILES_OF_AN_OBJECT * maxObjects;
  try {
    for (const round of rounds) {
      const drawer = new Drawer(operations, round, random, learned);
      neighbour.hot = { calls: 0, local: 0 };
      neighbour.tookMs = [];
      await times(callsOf(round), leastMs, atOnce, async (number) => {
        if (number === IN_THE_MIDST && isFloodOfReports(round)) await neighbour.report();
        const { method, path, body } = drawer.call(number);
        const sent = await attacker.send(round.token, method, path, body);
        calls += 1;
        learned.read(sent.text);
        statuses.set(round.operation.id, (statuses.get(round.operation.id) ?? new Set()).add(sent.status));
        const law = brokenLaw(round, sent);
        if (law !== undefined)
          note(law, `${round.token} ${method} ${path} ${body ?? ""}: ${sent.status} ${sent.text}`);
      });
      // Calls that the attack has delayed belong to this round.
      while (neighbour.tookMs.length < 2 * NEIGHBOURS) await sleep(1);
      for (const [law, example] of await lawsAfter(round, neighbour, quiet))
        note(law, `${example} after ${nameOf(round)}`);
      const files = filesOf(serving);
      if (files > maxFiles) note("files are bounded", `${files} of ${maxFiles} after ${nameOf(round)}`);
      if (await after?.(round, neighbour, found)) break;
    }
    isOver = true;
    await living;
    await neighbour.feels();
    for (const [law, example] of ownersLaws(before, await ownerSees(quiet))) note(law, example);
  } finally {
    isOver = true;
    attacker.close();
    quiet.close();
  }
  for (const [law, example] of neighbour.found) note(law, example);
  return { found, calls, neighbour, statuses };
}

export function nameOf({ operation: { id }, part, kind, token }: Round): string {
  return `${id} by ${token}, ${part} ${kind}`;
}

async function times(
  count: number,
  leastMs: number,
  atOnce: number,
  call: (number: number) => Promise<void>,
): Promise<void> {
  const untilMs = performance.now() + leastMs;
  let begun = 0;
  const worker = async () => {
    while (begun < count || (leastMs > 0 && performance.now() < untilMs)) await call((begun += 1));
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
}

/** The law that an answer to the attacker breaks. */
function brokenLaw({ operation, token, part, kind }: Round, { status, text }: Sent): string | undefined {
  const isShed = status === 503 && text.includes("temporary-reduced-capacity");
  if (status >= 500 && !isShed) return `no answer is a ${status}`;
  if (text.includes(NEIGHBOUR_SECRET) || (kind !== "odd" && text.includes(NEIGHBOUR_KEY)))
    return "no answer is of another's";
  if (operation.promises(status) === undefined && status !== 429)
    return `${operation.id} promises no ${status}`;
  const isAdmin = token === "manager" || token === "author";
  if (OF_ALL.has(operation.id) && token !== "author" && status < 300)
    return "what is of all keys is not for a prefix";
  const hasRight = RIGHTS_FIRST.has(operation.id) ? token === "author" : isAdmin || !OF_ALL.has(operation.id);
  if (
    !hasRight &&
    part !== "query" &&
    part !== "dryRun" &&
    ![401, 403].includes(status) &&
    token !== "teller"
  )
    return "rights are looked at first";
  if (operation.id === "putCatalog" && kind !== "same" && part !== "query" && status === 200)
    return "a document gives no token the name of another, nor a long one, and has its bounds";
  return undefined;
}

interface Seen {
  readonly tokens: string;
  readonly patterns: readonly (readonly [policy: string, pattern: string])[];
}

async function ownerSees(sender: Sender): Promise<Seen> {
  const read = async <Body>(path: string) =>
    JSON.parse((await sender.send("owner", "GET", path)).text) as Body;
  const patterns: [string, string][] = [];
  for (const policy of Object.keys(POLICIES)) {
    let cursor: string | undefined = "";
    while (cursor !== undefined) {
      const query: string = cursor === "" ? "" : `?cursor=${encodeURIComponent(cursor)}`;
      const page: { overrides: { pattern: string }[]; cursor?: string } = await read(
        `/v1/policies/${policy}/overrides${query}`,
      );
      patterns.push(...page.overrides.map(({ pattern }): [string, string] => [policy, pattern]));
      cursor = page.cursor;
    }
  }
  return { tokens: JSON.stringify(await read("/v1/tokens")), patterns };
}

/** The owner's reading of a key. */
async function ownerLooks(sender: Sender, policy: string, key: string) {
  const { text } = await sender.send("owner", "GET", `/v1/policies/${policy}/keys/${key}`);
  return JSON.parse(text) as {
    readonly outstanding: number;
    readonly shedding?: { readonly utilization: number | null };
  };
}

/** Clients of one caller hold at most half of a key that others want too, and the isolate has some. */
const MAX_OUTSTANDING = 75_000;

/** Whether a round reports ever new keys as busy. During it the neighbour reports its own. */
function isFloodOfReports({ operation: { id }, part, kind, policy }: Round): boolean {
  return id === "limit" && part === "key" && policy === "busy" && kind === "new";
}
const IN_THE_MIDST = 5_000;
const REPORTED_KEY = "10.2.9.1";

/** The laws of effects that only last during the attack. */
async function lawsAfter(
  round: Round,
  neighbour: Neighbour,
  sender: Sender,
): Promise<[law: string, example: string][]> {
  if (round.operation.id === "reserve") {
    const { outstanding } = await ownerLooks(sender, "hot", HOT_KEY);
    const { calls, local } = neighbour.hot;
    return [
      ...((outstanding > MAX_OUTSTANDING ? [["one caller holds a part", `${outstanding} units`]] : []) as [
        string,
        string,
      ][]),
      ...((calls > ENOUGH && local < calls / 2
        ? [["isolates decide a hot key", `${local} of ${calls} calls`]]
        : []) as [string, string][]),
    ];
  }
  if (!isFloodOfReports(round)) return [];
  const { shedding } = await ownerLooks(sender, "busy", REPORTED_KEY);
  return shedding?.utilization === null ? [["reports of the neighbour are taken", "none was"]] : [];
}

const MAX_BEGINNINGS = 128;

function ownersLaws(before: Seen, { tokens, patterns }: Seen): [law: string, example: string][] {
  const stray = patterns.filter(([, pattern]) => !isWithin(pattern));
  const globs = Map.groupBy(
    patterns.filter(([, pattern]) => pattern.includes("*")),
    ([policy]) => policy,
  );
  const beginnings = Math.max(
    0,
    ...[...globs.values()].map((its) => new Set(its.map(([, pattern]) => pattern.indexOf("*"))).size),
  );
  const broken: [boolean, string, string][] = [
    [tokens !== before.tokens, "tokens stay as they are", tokens],
    [stray.length > 0, "patterns are within the prefix", JSON.stringify(stray.slice(0, 5))],
    [beginnings > MAX_BEGINNINGS, "lengths of beginnings are bounded", String(beginnings)],
  ];
  return broken.flatMap(([isBroken, law, example]) => (isBroken ? [[law, example]] : []));
}

/** Independent of Weir's own patterns. */
function isWithin(pattern: string): boolean {
  const [, bits] = /^[\d.]+\/(\d+)$/.exec(pattern) ?? [];
  return pattern.startsWith(PREFIX) && (bits === undefined || Number(bits) >= 16);
}
