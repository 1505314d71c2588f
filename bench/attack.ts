/**
 * What a neighbour feels of an attacker with weak tokens who draws from all calls of the API: its p99 in each round of the
 * attack, to that beside as many connections that make ordinary calls, in the same run. `npm run bench:attack`; FAULT=text
 * plants the fault whose name has this text (test/support/planted.ts), SEED, ROUNDS and SECONDS (of a round) change the run.
 */
import { rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { build } from "../scripts/project.ts";
import { roundsOf, type Round } from "../test/support/attack-draws.ts";
import { memoryOf } from "../test/support/callers.ts";
import { campaign, filesOf, nameOf, serveAttacked } from "../test/support/campaign.ts";
import { buildPlanted, FAULTS } from "../test/support/planted.ts";
import { seededRandom } from "../test/support/random.ts";
import { makeState, removeState } from "../test/support/served.ts";

const AT_ONCE = 16;
const MIN_MS = 1_000 * Number(process.env["SECONDS"] ?? 0.7);
/** A slow round is repeated, since the machine may be busy: the minimum of this many counts. */
const TRIES = 4;
const ALLOWED = 2;
/** Rounds of the attack between two rounds of ordinary calls. */
const BETWEEN = 8;
const QUIET_MS = 60_000;

const wanted = process.env["FAULT"];
const fault = wanted === undefined ? undefined : FAULTS.find(({ name }) => name.includes(wanted));
if (wanted !== undefined && fault === undefined)
  throw new Error(`FAULT=${wanted}: must be part of one of: ${FAULTS.map(({ name }) => name).join("; ")}`);
const seed = Number(process.env["SEED"] ?? Math.floor(Math.random() * 2 ** 31));
if (fault === undefined) build();
const state = makeState();
const bundle = fault && buildPlanted(fault.edits);
const serving = await serveAttacked(state, bundle?.main);
const random = seededRandom(seed);
const drawn = await roundsOf(serving.url, random, fault);
const [first] = drawn.rounds;
if (first === undefined) throw new Error("there are no rounds");
const limit = drawn.operations.all.find(({ id }) => id === "limit") ?? first.operation;
const ordinary: Round = { operation: limit, part: "none", kind: "same", policy: "api", token: "limiter" };
const attacks = drawn.rounds.slice(0, Number(process.env["ROUNDS"] ?? Infinity));
const rounds: Round[] = [];
for (const [index, round] of attacks.entries()) {
  if (index % BETWEEN === 0) rounds.push(ordinary);
  rounds.push(round);
}

const p99 = (values: readonly number[]) =>
  values.toSorted((a, b) => a - b)[Math.floor(0.99 * values.length)] ?? 0;
const median = (values: readonly number[]) => values.toSorted((a, b) => a - b)[values.length >> 1] ?? 0;
const usual: number[] = [];
const all: number[] = [];
const least = new Map<Round, number>();
const tries = new Map<Round, number>();
const before = { files: filesOf(serving), memory: memoryOf(serving) };
let most = before;
const made = await campaign({
  ...drawn,
  rounds,
  serving,
  random,
  atOnce: AT_ONCE,
  leastMs: MIN_MS,
  after: (round, { tookMs }) => {
    const its = p99(tookMs);
    most = {
      files: Math.max(most.files, filesOf(serving)),
      memory: Math.max(most.memory, memoryOf(serving)),
    };
    if (round === ordinary) usual.push(its);
    else {
      all.push(...tookMs);
      least.set(round, Math.min(its, least.get(round) ?? Infinity));
      tries.set(round, (tries.get(round) ?? 0) + 1);
      if (its > ALLOWED * median(usual) && (tries.get(round) ?? 0) < TRIES) rounds.push(ordinary, round);
    }
    return Promise.resolve(false);
  },
});
const base = median(usual);
const ranked = [...least].toSorted(([, a], [, b]) => b - a);
// The author of documents is not weak, and is there for what documents may say.
const slow = ranked.filter(([{ token }, its]) => token !== "author" && its > ALLOWED * base);
console.log(`SEED=${seed}${fault === undefined ? "" : `, planted: ${fault.name}`}`);
console.log(
  `${attacks.length} rounds, ${made.calls} calls of the attacker, ${made.neighbour.calls} of the neighbour`,
);
console.log(
  `p99 beside ordinary calls: ${base.toFixed(1)} ms; beside the attack: ${p99(all).toFixed(1)} ms, ${(p99(all) / base).toFixed(2)} times as long`,
);
for (const isWeak of [true, false]) {
  console.log(isWeak ? "the slowest rounds of weak tokens:" : "and of the author of documents:");
  const these = ranked.filter(([{ token }]) => (token !== "author") === isWeak);
  for (const [round, its] of these.slice(0, isWeak ? Math.max(5, slow.length) : 1))
    console.log(`  ${(its / base).toFixed(2)}  ${nameOf(round)}`);
}
for (const [law, example] of made.found) console.log(`broken: ${law}: ${example.slice(0, 300)}`);
if (slow.length > 0)
  console.log(`broken: in ${slow.length} rounds of weak tokens p99 is over ${ALLOWED} times as long`);
if (fault === undefined) {
  await sleep(QUIET_MS);
  const after = { files: filesOf(serving), memory: memoryOf(serving) };
  for (const what of ["files", "memory"] as const)
    console.log(
      `${what}: ${Math.round(before[what])} before, at most ${Math.round(most[what])}, ${Math.round(after[what])} a minute after`,
    );
}
await serving.stop("SIGKILL");
removeState(state);
if (bundle !== undefined) rmSync(bundle.folder, { recursive: true });
process.exit(made.found.size + slow.length > 0 ? 1 : 0);
