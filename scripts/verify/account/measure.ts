/** How each part of an account is measured. */
import { dollarsOf, gbSecondsOf } from "../../../bench/prices.ts";
import { LOCATION_HINTS } from "../../../core/policies/policy.ts";
import { pause, type Answered, type Calls } from "../calls.ts";
import { percentiles } from "../report.ts";
import { type Answer, type CloudflareApi, type Namespace, partsOfFreeDay, type Usage } from "./cloudflare.ts";
import type { Trial } from "./trial.ts";

/** The lengths of all parts. */
export interface Lengths {
  readonly loadMs: number;
  readonly callers: readonly number[];
  readonly objects: number;
  readonly messageCallers: readonly number[];
  readonly restMs: number;
  readonly maxMessages: number;
  readonly waiters: number;
  readonly waitMs: number;
  readonly coldRounds: number;
  /** An isolate's knowledge of the catalog is old after 8 s without calls, in milliseconds. */
  readonly coldAfterMs: number;
  readonly hotSeconds: number;
  readonly overrides: number;
  readonly settleMs: number;
  readonly maxCalls: number;
  readonly subrequests: number;
  /** The longest wait for analytics, which are some minutes late, in milliseconds. */
  readonly analyticsMs: number;
}

/** The account with the limiter. Absent: all of it runs on plain workerd. */
export interface Account {
  readonly api: CloudflareApi;
  /** The limiter's name, and the classes of all workers. */
  readonly script: string;
  readonly namespaces: readonly Namespace[];
}

export interface Measuring {
  readonly limiter: Calls;
  /** A policy of the limiter, which costs nothing here. */
  readonly policy: string;
  readonly trial: Trial;
  readonly calls: Calls;
  readonly account: Account | undefined;
  readonly lengths: Lengths;
}

/** What was measured; `skipped`: why nothing was. */
export type Outcome = readonly string[] | { readonly skipped: string };

const DAY_MS = 86_400_000;
const NO_ANALYTICS = { skipped: "plain workerd bills nothing, and has no analytics" } as const;
const NO_PLACES = { skipped: "plain workerd runs in one place" } as const;
const TRACE_URL = "https://cloudflare.com/cdn-cgi/trace";
/** Calls of the trial that one call makes at once. */
export const AT_ONCE = 40;
export const HOT_PER_SECOND = 500;
export const DISTANCES_MS = [100, 200, 300];
const REDEPLOYMENT_CALLERS = 16;
/** Looks for the new version, at 5 a second. */
export const MAX_WATCHES = 2_000;
/** A part of the overrides is called, so that the keys are known soon. */
export const CALLED_KEYS = 500;

/** Calls by so many at once for a time, and no more than so many. */
async function callFor(
  callers: number,
  lastsMs: number,
  maxCalls: number,
  call: () => Promise<Answered | undefined>,
): Promise<Answered[]> {
  const answers: Answered[] = [];
  const endMs = performance.now() + lastsMs;
  let made = 0;
  const callUntilEnd = async () => {
    while (performance.now() < endMs && made < maxCalls) {
      made += 1;
      const answered = await call();
      if (answered?.status === 200) answers.push(answered);
      else await pause(100);
    }
  };
  await Promise.all(Array.from({ length: callers }, callUntilEnd));
  return answers;
}

export async function isolates({
  calls,
  lengths: { callers, loadMs, maxCalls },
}: Measuring): Promise<Outcome> {
  const says: string[] = [];
  for (const count of callers) {
    const answers = await callFor(count, loadMs, maxCalls, () => calls.make("GET", "/trial/isolate"));
    const byColo = Map.groupBy(answers, ({ body }) => String(body["colo"]) || "one place");
    const found = [...byColo].map(([colo, its]) => {
      const distinct = new Set(its.map(({ body }) => String(body["isolate"]))).size;
      return `${distinct} in ${colo} (${its.length} calls)`;
    });
    says.push(`${count} at once for ${loadMs / 1_000} s: ${found.join(", ") || "no answer"}`);
  }
  return says;
}

export async function isolatesOfObjects({ calls, lengths: { objects } }: Measuring): Promise<Outcome> {
  const counts = new Map<string, number>();
  for (let from = 0; from < objects; from += AT_ONCE) {
    const count = Math.min(AT_ONCE, objects - from);
    const answered = await calls.make("POST", "/trial/objects", { from, count });
    const found = listOf<string>(answered, "isolates") ?? Array.from({ length: count }, () => "");
    for (const isolate of found) counts.set(isolate, (counts.get(isolate) ?? 0) + 1);
  }
  const failed = counts.get("") ?? 0;
  counts.delete("");
  if (counts.size === 0) return { skipped: `none of ${objects} objects answered` };
  const most = Math.max(...counts.values());
  const lost = failed === 0 ? "" : `; ${failed} did not answer`;
  return [`${objects - failed} objects, by isolates: ${counts.size}, at most ${most} objects in one${lost}`];
}

export async function messages({ calls, lengths }: Measuring): Promise<Outcome> {
  const { messageCallers, loadMs, restMs, maxMessages } = lengths;
  const [least = 1] = messageCallers;
  const step = async (callers: number) => {
    const body = { object: "one of many calls", count: AT_ONCE };
    const answers = await callFor(callers, loadMs, Math.floor(maxMessages / AT_ONCE), () =>
      calls.make("POST", "/trial/load", body),
    );
    const tookMs = answers.flatMap((each) => listOf<number>(each, "tookMs") ?? []);
    const count = (field: string) => answers.reduce((sum, { body: its }) => sum + Number(its[field] ?? 0), 0);
    const [overloaded, others] = [count("overloaded"), count("others")];
    const perSecond = Math.round((1_000 * tookMs.length) / loadMs);
    const failed = overloaded + others === 0 ? "none failed" : `${overloaded} overloaded, ${others} failed`;
    return {
      tookMs,
      isWhole: overloaded + others === 0,
      says: `${perSecond} a second, ${percentiles(tookMs)}, ${failed}`,
    };
  };
  const says: string[] = [];
  for (const callers of messageCallers)
    says.push(`${callers * AT_ONCE} under way: ${(await step(callers)).says}`);
  await pause(restMs);
  const after = await step(least);
  if (after.tookMs.length === 0) return { skipped: "the object answered nothing" };
  const recovers = after.isWhole ? "it recovers" : "it does NOT recover";
  return [
    ...says,
    `${recovers}: after ${restMs / 1_000} s of rest, ${least * AT_ONCE} under way: ${after.says}`,
  ];
}

export async function hotKeys({ calls, lengths: { hotSeconds: seconds } }: Measuring): Promise<Outcome> {
  const says: string[] = [];
  for (const ms of DISTANCES_MS) {
    const body = { object: calls.freshKey(), ms, seconds, perSecond: HOT_PER_SECOND };
    const answered = await calls.make("POST", "/trial/hot", body);
    const tookMs = listOf<number>(answered, "tookMs");
    if (answered === undefined || tookMs === undefined) {
      says.push(`${ms} ms away: no answer`);
      continue;
    }
    // The first half has the start, when no units are held yet.
    const halves = [tookMs.slice(0, tookMs.length >> 1), tookMs.slice(tookMs.length >> 1)];
    const stalls = halves.map((half) => `${half.filter((each) => each >= ms / 2).length} of ${half.length}`);
    const { degraded, denied } = answered.body;
    says.push(
      `${ms} ms away, ${HOT_PER_SECOND} a second for ${seconds} s: ${stalls.join(" calls waited, then ")}, ` +
        `${percentiles(tookMs)}; ${String(degraded)} degraded, ${String(denied)} denied`,
    );
  }
  return says.every((each) => each.endsWith("no answer")) ? { skipped: "the trial gave no answer" } : says;
}

/** Of the limiter itself. The second call of a pair waits for no catalog, so the difference is the catalog's. */
export async function coldCalls({
  limiter,
  policy,
  lengths: { coldRounds, coldAfterMs },
}: Measuring): Promise<Outcome> {
  const tookMs: { readonly first: number[]; readonly second: number[] } = { first: [], second: [] };
  for (let round = 0; round < coldRounds; round += 1) {
    await pause(coldAfterMs);
    // It opens the connection, starts an isolate and reads nothing.
    await limiter.make("GET", "/healthz");
    for (const which of ["first", "second"] as const) {
      const beginMs = performance.now();
      const answered = await limiter.make("POST", "/v1/limit", { policy, key: limiter.freshKey(), cost: 0 });
      if (answered?.status === 200) tookMs[which].push(performance.now() - beginMs);
    }
  }
  const pairs = Math.min(tookMs.first.length, tookMs.second.length);
  if (pairs === 0) return { skipped: `the limiter does not decide calls of ${policy}` };
  const middle = (all: readonly number[]) => all.toSorted((a, b) => a - b)[all.length >> 1] ?? 0;
  return [
    `the catalog's part is ${(middle(tookMs.first) - middle(tookMs.second)).toFixed(1)} ms, of ${pairs} pairs`,
    `the first call after a pause of ${coldAfterMs / 1_000} s: ${percentiles(tookMs.first)}`,
    `the next call, of another new key: ${percentiles(tookMs.second)}`,
  ];
}

export async function redeployment({ trial, calls, lengths }: Measuring): Promise<Outcome> {
  const { overrides, settleMs, maxCalls } = lengths;
  const limitOf = (each: number) => 1_000_001 + each;
  const keys = Array.from({ length: overrides }, (_, each) => `customer:${each}`);
  const changed = Object.fromEntries(
    keys.map((key, each) => [key, { limit: limitOf(each), burst: limitOf(each) }]),
  );
  const beginMs = performance.now();
  const document = { policies: {}, overrides: { changed }, tokens: {} };
  const written = await calls.make("PUT", "/v1/catalog", document);
  if (written?.status !== 200)
    return { skipped: `the overrides were not written: ${written?.status ?? "no answer"}` };
  const says = [`${overrides} overrides were written in ${Math.round(performance.now() - beginMs)} ms`];
  // By then all isolates know them.
  await pause(settleMs);
  const seen = { others: 0, degraded: 0, without: 0, lost: 0, tookMs: [] as number[] };
  const versions: { firstNewMs?: number; lastOldMs?: number } = {};
  let isOver = false;
  let made = 0;
  const call = async () => {
    for (let turn = 0; !isOver && made < maxCalls; turn += 1) {
      made += 1;
      const key = keys[(made * 7) % Math.min(CALLED_KEYS, keys.length)] ?? "";
      const answered = await calls.make("POST", "/v1/limit", { policy: "changed", key });
      if (answered === undefined) seen.lost += 1;
      else if (answered.status !== 200) seen.others += 1;
      else {
        seen.tookMs.push(answered.receivedAtMs - answered.sentAtMs);
        if (answered.body["reason"] === "degraded") seen.degraded += 1;
        if (answered.body["override"] !== key) seen.without += 1;
      }
      await pause(answered?.status === 200 ? 5 : 100);
    }
  };
  const watch = async (sinceMs: number) => {
    for (let each = 0; !isOver && each < MAX_WATCHES; each += 1) {
      const version = (await calls.make("GET", "/trial/isolate"))?.body["version"];
      const atMs = performance.now() - sinceMs;
      if (version === "2") versions.firstNewMs ??= atMs;
      if (version === "1") versions.lastOldMs = atMs;
      await pause(200);
    }
  };
  const sinceMs = performance.now();
  const underWay = [watch(sinceMs), ...Array.from({ length: REDEPLOYMENT_CALLERS }, call)];
  try {
    await pause(settleMs / 2);
    await trial.redeploy("2");
    await pause(settleMs);
  } finally {
    isOver = true;
    await Promise.all(underWay);
  }
  const seconds = (ms: number | undefined) =>
    ms === undefined ? "never" : `after ${(ms / 1_000).toFixed(1)} s`;
  return [
    ...says,
    `${made} calls by ${REDEPLOYMENT_CALLERS} at once: ${seen.lost} not answered, ${seen.others} errors, ` +
      `${seen.degraded} degraded, ${seen.without} without their override; ${percentiles(seen.tookMs)}`,
    `the new version answered first ${seconds(versions.firstNewMs)}, the old one last ${seconds(versions.lastOldMs)}` +
      ` (deployed after ${settleMs / 2_000} s)${trial.script === undefined ? ": a restart of plain workerd" : ""}`,
  ];
}

export async function places({ calls, account }: Measuring): Promise<Outcome> {
  if (account === undefined) return NO_PLACES;
  const says: string[] = [];
  const nowMs = Date.now();
  for (const className of ["CatalogObject", "StatsObject"]) {
    const its = account.namespaces.find((each) => each.script === account.script && each.class === className);
    const found: Answer<ReadonlyMap<string, number>> =
      its === undefined
        ? { problem: `${account.script} has no such class` }
        : await account.api.colos(nowMs - DAY_MS, nowMs, its.id);
    const colos =
      "problem" in found ? found.problem : [...found.value].map(([colo, count]) => `${colo} (${count})`);
    says.push(`${className}, by requests of the last 24 h: ${String(colos) || "none"}`);
  }
  for (const hint of [undefined, ...LOCATION_HINTS]) {
    const body = { object: `place ${hint ?? ""}`, hint, traceUrl: TRACE_URL, count: 5 };
    const answered = await calls.make("POST", "/trial/place", body);
    const near = hint === undefined ? "made near this caller" : `HOME = "${hint}"`;
    const tookMs = listOf<number>(answered, "tookMs") ?? [];
    says.push(
      tookMs.length === 0
        ? `${near}: no answer`
        : `${near}: in ${String(answered?.body["colo"])}, ${Math.min(...tookMs)} ms away`,
    );
  }
  return says;
}

export async function freePlan({
  calls,
  account,
  lengths: { subrequests: count },
}: Measuring): Promise<Outcome> {
  const answered = await calls.make("POST", "/trial/subrequests", { count });
  const made = answered?.status === 200 ? Number(answered.body["answered"]) : undefined;
  const error = answered?.body["error"] as string | undefined;
  const inOne =
    made === undefined
      ? `the invocation with ${count} calls to an object failed: ${answered?.status ?? "no answer"}`
      : `${made} of ${count} calls to an object were answered in one invocation${error === undefined ? "" : `, then: ${error}`}`;
  if (account === undefined) return [inOne, `use of the day: ${NO_ANALYTICS.skipped}`];
  const nowMs = Date.now();
  const used = await account.api.usage(nowMs - (nowMs % DAY_MS), nowMs);
  if ("problem" in used) return [inOne, `use of the day: ${used.problem}`];
  return [inOne, `today's use of the account: ${partsOfFreeDay(used.value)}`];
}

export async function bill({ account }: Measuring): Promise<Outcome> {
  if (account === undefined) return NO_ANALYTICS;
  const { api, script, namespaces } = account;
  const namespaceIds = namespaces.filter((each) => each.script === script).map(({ id }) => id);
  const nowMs = Date.now();
  const used = await api.usage(nowMs - DAY_MS, nowMs, { script, namespaceIds });
  if ("problem" in used) return { skipped: used.problem };
  const dollars = dollarsOf({ ...used.value, logEvents: 0 });
  const { workerRequests } = used.value;
  const perMillion =
    workerRequests === 0
      ? "no worker request: nothing to compare"
      : `$${((dollars * 1_000_000) / workerRequests).toFixed(2)} for a million worker requests`;
  return [
    `the last 24 h of ${script}: ${partsOfFreeDay(used.value)} of a free day`,
    `$${dollars.toFixed(2)} without the plan's included usage and logs; ${perMillion}`,
  ];
}

export async function waiting({ calls, trial, account, lengths }: Measuring): Promise<Outcome> {
  const { waiters, waitMs, analyticsMs } = lengths;
  const sinceMs = Date.now();
  const waits = Array.from({ length: waiters }, (_, each) =>
    calls.make("POST", "/trial/wait", { object: `waiting ${each}`, ms: waitMs }),
  );
  const answered = (await Promise.all(waits)).filter((each) => each?.status === 200).length;
  const waited = `${answered} of ${waiters} calls waited ${waitMs / 1_000} s in an object each`;
  if (account === undefined || trial.script === undefined)
    return { skipped: `${NO_ANALYTICS.skipped} (${waited})` };
  const { script } = trial;
  const listed = await account.api.namespaces();
  if ("problem" in listed) return { skipped: listed.problem };
  const its = listed.value.filter((each) => each.script === script && each.class === "WaitingObject");
  const billed = await settledUsage(account.api, sinceMs, analyticsMs, {
    script,
    namespaceIds: its.map(({ id }) => id),
  });
  if ("problem" in billed) return { skipped: `${billed.problem} (${waited})` };
  const expected = answered * gbSecondsOf(waitMs);
  return [
    `${waited}: ${billed.value.gbSeconds.toFixed(2)} GB-s are billed, ${expected.toFixed(2)} are their waits`,
  ];
}

const ASK_AGAIN_MS = 20_000;

/** What analytics say when they say it twice, and not nothing. They are late. */
async function settledUsage(
  api: CloudflareApi,
  sinceMs: number,
  withinMs: number,
  of: { readonly script: string; readonly namespaceIds: readonly string[] },
): Promise<Answer<Usage>> {
  const endMs = performance.now() + withinMs;
  let before = -1;
  for (;;) {
    const used = await api.usage(sinceMs, Date.now(), of);
    if ("problem" in used || (used.value.gbSeconds > 0 && used.value.gbSeconds === before)) return used;
    before = used.value.gbSeconds;
    const leftMs = endMs - performance.now();
    if (leftMs <= 0) return { problem: `the analytics have nothing final after ${withinMs / 1_000} s` };
    await pause(Math.min(ASK_AGAIN_MS, leftMs));
  }
}

function listOf<Item>(answered: Answered | undefined, field: string): Item[] | undefined {
  const list = answered?.status === 200 ? answered.body[field] : undefined;
  return Array.isArray(list) && list.length > 0 ? (list as Item[]) : undefined;
}
