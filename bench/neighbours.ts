/**
 * What a neighbour feels of an attack: its p50 and p99 before, during and after. The neighbour has another token, and
 * makes one call at a time for a key of its own in the object that the attacker floods. `npm run build` first, then
 * `node bench/neighbours.ts`.
 */
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { Agent, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { serve } from "../scripts/workerd.ts";

const SECONDS = Number(process.env["SECONDS"] ?? 4);
/** How many connections the attacker has, and how long each rests after an answer, in milliseconds. */
const AT_ONCE = 256;
const REST_MS = 100;

const ONE_OBJECT = { objects: 1, deadlineMs: 20_000 };
const POLICIES = {
  api: { algorithm: "token-bucket", limit: 1_000_000, window: "30d", reservation: "off", ...ONE_OBJECT },
  slots: { algorithm: "concurrency", limit: 100_000, maxWait: "30s", maxWaiters: 1_000, ...ONE_OBJECT },
  slot: { algorithm: "concurrency", limit: 1, maxWait: "30s", maxWaiters: 1_000, ...ONE_OBJECT },
  llm: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 10, window: "30d" },
      tokens: { algorithm: "token-bucket", limit: 1_000_000, window: "30d", unit: "tokens" },
    },
    reservation: "off",
    ...ONE_OBJECT,
  },
};

interface Call {
  readonly method?: string;
  readonly path: string;
  readonly body?: object;
}

/** What the attacker sends, again and again. */
interface Attack {
  readonly name: string;
  /** The policy whose object is attacked. The neighbour has a key of it. */
  readonly policy: keyof typeof POLICIES;
  readonly call: (index: number) => Call;
  /** How many calls to make before anything is measured: to fill what can be filled. */
  readonly first?: number;
  /** The token's bounds, if they are not the default. */
  readonly bounds?: object;
}

const SECRET = "A".repeat(22);
const idOf = (kind: string, place: string) => `${kind}_${Buffer.from(place).toString("base64url")}.${SECRET}`;
const limit = (body: object): Call => ({ path: "/v1/limit", body });

const ATTACKS: readonly Attack[] = [
  { name: "calls on one key", policy: "api", call: () => limit({ policy: "api", key: "one" }) },
  {
    name: "new keys",
    policy: "api",
    call: (index) => limit({ policy: "api", key: `new ${index} ${Math.random()}` }),
  },
  {
    name: "new keys, `maxNewKeysPerSecond` 100",
    policy: "api",
    call: (index) => limit({ policy: "api", key: `new ${index} ${Math.random()}` }),
    bounds: { maxNewKeysPerSecond: 100 },
  },
  {
    name: "calls on one key, `maxCallsAtOnce` 16",
    policy: "api",
    call: () => limit({ policy: "api", key: "one" }),
    bounds: { maxCallsAtOnce: 16 },
  },
  {
    name: "10,000 holds, and denied calls beside them",
    policy: "llm",
    first: 10_050,
    call: (index) =>
      index < 10_050
        ? {
            path: "/v1/holds",
            body: { policy: "llm", key: "one", units: { requests: 0, tokens: 1 }, ttlMs: 3_600_000 + index },
          }
        : limit({ policy: "llm", key: "one", cost: { requests: 11 } }),
  },
  {
    name: "10,000 leases, and denied acquires behind 1,000 waiters",
    policy: "slots",
    first: 10_050,
    call: (index) => ({
      path: "/v1/leases",
      body: { policy: "slots", key: "one", ttlMs: 20_000 + index, ...(index > 10_050 && { units: 95_000 }) },
    }),
  },
  {
    name: "waiting acquires",
    policy: "slot",
    call: () => ({ path: "/v1/leases", body: { policy: "slot", key: "one", waitMs: 500 } }),
  },
  {
    name: "`waitFor=idle`",
    policy: "slot",
    call: (index) =>
      index === 0
        ? { path: "/v1/leases", body: { policy: "slot", key: "one", ttlMs: 60_000 } }
        : { method: "GET", path: "/v1/policies/slot/keys/one?waitFor=idle&waitMs=500" },
  },
  {
    name: "forged ids",
    policy: "slots",
    call: (index) => ({ method: "DELETE", path: `/v1/leases/${idOf("lease", `slots/forged ${index}`)}` }),
  },
  {
    name: "charged calls under idempotency keys",
    policy: "api",
    call: (index) => limit({ policy: "api", key: "one", idempotencyKey: `call ${index}` }),
  },
  {
    name: "5,450 empty checks",
    policy: "api",
    call: () => ({ path: "/v1/limit/all", body: { checks: Array.from({ length: 5_450 }, () => ({})) } }),
  },
];

const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE + 8 });

function send(url: string, token: string, { method, path, body }: Call): Promise<number> {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const headers = {
    authorization: `Bearer ${token}`,
    ...(text !== undefined && {
      "content-type": "application/json",
      "content-length": Buffer.byteLength(text),
    }),
  };
  return new Promise((done, fail) => {
    const options = { method: method ?? (text === undefined ? "GET" : "POST"), agent, headers };
    const call = request(`${url}${path}`, options, (response) => {
      response.on("error", fail).on("end", () => done(response.statusCode ?? 0));
      response.resume();
    });
    call.on("error", fail).end(text);
  });
}

/** The neighbour's latencies for some seconds. */
async function feel(url: string, policy: string): Promise<string> {
  const latenciesMs: number[] = [];
  const endMs = performance.now() + SECONDS * 1_000;
  while (performance.now() < endMs) {
    const startMs = performance.now();
    const call = policy.startsWith("slot")
      ? { method: "GET", path: `/v1/policies/${policy}/keys/neighbour` }
      : limit({ policy, key: "neighbour", cost: policy === "llm" ? { requests: 0, tokens: 1 } : 1 });
    const status = await send(url, "neighbour", call);
    if (status !== 200) throw new Error(`the neighbour was answered ${status}`);
    latenciesMs.push(performance.now() - startMs);
  }
  const sorted = latenciesMs.toSorted((a, b) => a - b);
  const at = (share: number) => (sorted[Math.floor(share * sorted.length)] ?? Number.NaN).toFixed(1);
  return `${at(0.5)} / ${at(0.99)}`;
}

async function measure({ name, policy, call, first = 0, bounds = {} }: Attack): Promise<string> {
  const stateDir = mkdtempSync(join(tmpdir(), "weir-neighbours-"));
  const tokens = ["attacker", "neighbour"].map((token) => ({
    name: token,
    sha256: createHash("sha256").update(token).digest("hex"),
    scopes: ["limit"],
    ...(token === "attacker" && bounds),
  }));
  const apiTokens = JSON.stringify(tokens);
  const serving = await serve({ stateDir, policies: POLICIES, apiTokens, onOutput: () => undefined });
  const { url } = serving;
  let [next, isOver] = [0, false];
  const statuses = new Map<number, number>();
  const attack = async (until: () => boolean, restMs: number) => {
    while (!until()) {
      const status = await send(url, "attacker", call(next++));
      statuses.set(status, (statuses.get(status) ?? 0) + 1);
      if (restMs > 0) await new Promise((done) => setTimeout(done, restMs));
    }
  };
  try {
    const before = await feel(url, policy);
    await Promise.all(Array.from({ length: 32 }, () => attack(() => next >= first, 0)));
    statuses.clear();
    const attacks = Array.from({ length: AT_ONCE }, () => attack(() => isOver, REST_MS));
    const during = await feel(url, policy);
    isOver = true;
    await Promise.all(attacks);
    const after = await feel(url, policy);
    const calls = [...statuses].map(([status, count]) => `${Math.round(count / SECONDS)} of ${status}`);
    return `| ${name} | ${before} | ${during} | ${after} | ${calls.join(", ")} |`;
  } finally {
    isOver = true;
    await serving.stop("SIGKILL");
    rmSync(stateDir, { recursive: true, force: true });
  }
}

console.log(`| attack, ${AT_ONCE} at once | before | during | after | answers a second |`);
console.log("| --- | --- | --- | --- | --- |");
for (const attack of ATTACKS) console.log(await measure(attack));
agent.destroy();
