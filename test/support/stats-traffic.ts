/** Traffic over HTTP, and the expected content of /metrics. */
import { setTimeout as sleep } from "node:timers/promises";
import { TOKENS } from "./fixtures.ts";
import { parsedMetrics } from "./metrics.ts";
import { pick, whole } from "./random.ts";

export const STATS_POLICIES = {
  hot: { algorithm: "token-bucket", limit: 50, window: "1h", deadlineMs: 20_000 },
  shared: { algorithm: "sliding-log", limit: 3, window: "1h", objects: 4, deadlineMs: 20_000 },
  slots: { algorithm: "concurrency", limit: 2, deadlineMs: 20_000 },
  trial: { algorithm: "token-bucket", limit: 1, window: "1h", shadow: true, deadlineMs: 20_000 },
};

/** The counts by the labels of weir_decisions_total. */
export type Decisions = Map<string, number>;

/** Admitted calls with less than a fifth left, by policy. */
export type NearLimits = Map<string, number>;

interface Answered {
  readonly policy: string;
  readonly success: boolean;
  readonly reason: string;
  readonly source: string;
  readonly rules: readonly Rule[];
}

interface Rule {
  readonly remaining: number;
  readonly limit: number;
}

async function call(url: string, path: string, body: object): Promise<Record<string, unknown>> {
  const response = await fetch(`${url}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  return (await response.json()) as Record<string, unknown>;
}

function note(decisions: Decisions, near: NearLimits, answer: Answered): void {
  const { policy, success, reason, source, rules } = answer;
  const outcome = success ? "admitted" : "denied";
  const labels = `policy="${policy}",outcome="${outcome}",reason="${reason}",source="${source}"`;
  decisions.set(labels, (decisions.get(labels) ?? 0) + 1);
  if (success && rules.some(({ remaining, limit }) => remaining < limit / 5))
    near.set(policy, (near.get(policy) ?? 0) + 1);
}

/**
 * Decisions of a client: one before it knows the policy, one that it reads as the object has made it, and three that it says
 * it has made.
 */
async function decidedForClient(url: string, key: string): Promise<readonly Answered[]> {
  const made = { shared: [2, 1], nowhere: [5, 5], "shared nothing": [5, 5] };
  const send = (known: object, more: object = {}) =>
    call(url, "/v1/reservations", {
      protocol: 1,
      known,
      ...more,
      calls: [{ limit: { policy: "shared", key } }],
    });
  const first = (await send({})) as {
    readonly policies: { readonly shared: { readonly version: string } };
    readonly answers: readonly [{ readonly decision: Answered }];
  };
  const second = await send({ shared: first.policies.shared.version }, { made });
  const [{ rules }] = second["answers"] as readonly [
    { readonly rules: readonly (Rule & { success: boolean })[] },
  ];
  const success = rules.every((rule) => rule.success);
  const reason = success ? "ok" : "quota";
  const own = { policy: "shared", source: "process", rules: [] };
  const admitted = { ...own, success: true, reason: "ok" };
  const denied = { ...own, success: false, reason: "quota" };
  return [
    first.answers[0].decision,
    admitted,
    admitted,
    denied,
    { policy: "shared", success, reason, source: "object", rules },
  ];
}

/** Makes calls of every kind, and records the answers. */
export async function traffic(
  url: string,
  random: () => number,
  calls: number,
  decisions: Decisions = new Map(),
  near: NearLimits = new Map(),
): Promise<Decisions> {
  const key = () => `k${whole(random, 5)}`;
  for (let made = 0; made < calls; made += 1) {
    const kind = random();
    if (kind < 0.1) for (const each of await decidedForClient(url, key())) note(decisions, near, each);
    else if (kind < 0.6) {
      const policy = pick(random, ["hot", "shared", "trial"]);
      note(decisions, near, (await call(url, "/v1/limit", { policy, key: key() })) as unknown as Answered);
    } else if (kind < 0.7) {
      const checks = Array.from({ length: 3 }, (_, index) => ({ policy: "shared", key: `t${index}` }));
      const { decisions: all } = await call(url, "/v1/limit/all", { checks, atomic: random() < 0.5 });
      for (const each of all as Answered[]) note(decisions, near, each);
    } else if (kind < 0.8) {
      note(
        decisions,
        near,
        (await call(url, "/v1/holds", { policy: "hot", key: key(), units: 1 })) as unknown as Answered,
      );
    } else if (kind < 0.95) {
      const waitMs = whole(random, 20);
      const asked = { policy: "slots", key: key(), waitMs };
      note(decisions, near, (await call(url, "/v1/leases", asked)) as unknown as Answered);
    }
    // A refused call is no decision.
    else await call(url, "/v1/limit", { policy: "hot", key: "" });
  }
  return decisions;
}

export async function readMetrics(url: string, accept = "application/openmetrics-text"): Promise<string> {
  const headers = { authorization: `Bearer ${TOKENS.metrics}`, accept };
  const response = await fetch(`${url}/metrics`, { headers });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  return await response.text();
}

/** The decisions in /metrics. */
export async function metricDecisions(url: string): Promise<Decisions> {
  const { samples } = parsedMetrics(await readMetrics(url));
  const found: Decisions = new Map();
  for (const [name, value] of samples) {
    const labels = /^weir_decisions_total\{(.*)\}$/.exec(name)?.[1];
    if (labels !== undefined) found.set(labels, value);
  }
  return found;
}

export function sumOf(decisions: Decisions): number {
  return [...decisions.values()].reduce((sum, each) => sum + each, 0);
}

/** Reads /metrics until it has this number of decisions: isolates send their counts every 10 s. */
export async function metricsWith(url: string, total: number): Promise<Decisions> {
  for (;;) {
    const found = await metricDecisions(url);
    if (sumOf(found) >= total) return found;
    await sleep(250);
  }
}
