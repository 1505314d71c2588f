/** Notices, whenever the machine dies and the receiver is away: each that is owed arrives, with one id. */
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { MAX_UNSENT, type Notice } from "../../../core/accounts/notices.ts";
import type { Addressed } from "../../../durable-objects/notices/delivery.ts";
import { Died } from "../../simulation/database.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";
import { depth } from "../../support/depth.ts";
import { announcedSeed, pick, seededRandoms, whole } from "../../support/random.ts";

const DAY_MS = 86_400_000;
const START_MS = 1_800_000_000_000;
const THRESHOLDS = [0.5, 0.8, 1];
const TABLES = {
  bucket: { algorithm: "token-bucket", limit: 10, window: "60s" },
  log: { algorithm: "sliding-log", limit: 20, window: "60s" },
  window: { algorithm: "fixed-window", limit: 10, window: "60s" },
};
type Kind = keyof typeof TABLES;
const KEYS = ["ann", "bob", "cat"];

/** Takes notices, or fails. An object that has died hears nothing any more. */
class Receiver {
  isAway = false;
  /** It dies when the next notice has arrived. */
  diesNext = false;
  #life = 0;
  readonly ids = new Map<string, Notice>();
  readonly arrived = new Map<string, Set<string>>();

  /** A new life begins, and the one before is over. */
  readonly deliverer = () => {
    this.#life += 1;
    this.diesNext = false;
    const life = this.#life;
    return (addressed: Addressed) => this.#take(addressed, life);
  };

  async #take({ key, notice }: Addressed, life: number): Promise<void> {
    await Promise.resolve();
    if (life !== this.#life) return await new Promise<never>(() => undefined);
    if (this.isAway) throw new Error("it is away");
    const earlier = this.ids.get(notice.id);
    if (earlier !== undefined) expect(notice).toEqual(earlier);
    this.ids.set(notice.id, notice);
    const of = `${key} ${notice.threshold}`;
    this.arrived.set(of, (this.arrived.get(of) ?? new Set()).add(notice.id));
    if (this.diesNext) return await new Promise<never>(() => undefined);
  }
}

/** What is owed for a key by the words of API.md. */
class Owed {
  readonly counts = new Map<string, number>();
  readonly #reached = new Map<string, number>();

  step(kind: Kind, key: string, nowMs: number, before: number, after: number, isDenied: boolean): void {
    const { limit } = TABLES[kind];
    for (const threshold of THRESHOLDS) {
      const of = `${key} ${threshold}`;
      const window = Math.floor(nowMs / 60_000);
      const mark = this.#reached.get(of);
      const isAgain = kind === "window" ? mark !== window : before <= (threshold - 0.1) * limit + 1e-9;
      if (mark !== undefined && isAgain) this.#reached.delete(of);
      const isFirstDenial = threshold === 1 && isDenied && after > 0.9 * limit;
      const isReached = isFirstDenial || after >= threshold * limit - 1e-9;
      if (!isReached || this.#reached.has(of)) continue;
      this.#reached.set(of, window);
      this.counts.set(of, (this.counts.get(of) ?? 0) + 1);
    }
  }

  forget(key: string): void {
    for (const of of this.#reached.keys()) if (of.startsWith(`${key} `)) this.#reached.delete(of);
  }
}

/** A fault that a crash brings. */
type Fault = (rules: string) => string;

/** @returns what was owed and what arrived, by key and threshold */
async function history(kind: Kind, random: () => number, steps: number, fault?: Fault) {
  const receiver = new Receiver();
  const policies = known({ p: { ...TABLES[kind], notify: THRESHOLDS } });
  const object = new AlarmedObject(policies, START_MS, receiver.deliverer);
  const owed = new Owed();
  const { limit } = TABLES[kind];
  const usedOf = (key: string) => {
    const { rules } = object.ask(key, (each, keyState, nowMs) => each.peek(keyState, nowMs)) as {
      rules: readonly { remaining: number }[];
    };
    return limit - (rules[0]?.remaining ?? 0);
  };
  const unsentOf = (key: string) =>
    object.ask(key, (_, { ruleStates: [only] }) => only?.noticed.unsent.length ?? 0);
  const crash = async () => {
    object.background = [];
    object.database.writesLeft = Infinity;
    if (fault !== undefined) object.database.rewrite(fault);
    await object.restart(policies);
  };
  const settle = async () => {
    for (let turn = 0; turn < 30; turn += 1) await Promise.resolve();
  };
  for (let step = 0; step < steps; step += 1) {
    const key = pick(random, KEYS);
    const draw = random();
    if (draw < 0.55) {
      // A receiver that is away for longer hears of the last of them only.
      if (unsentOf(key) > MAX_UNSENT - THRESHOLDS.length) continue;
      const before = usedOf(key);
      let isDenied = false;
      if (random() < 0.15) object.database.writesLeft = whole(random, 3);
      try {
        object.storage.turn(
          () => {
            isDenied = object.limit(key, 1 + whole(random, 4)).rules.some(({ success }) => !success);
          },
          (error) => {
            throw error;
          },
        );
      } catch (error) {
        if (!(error instanceof Died)) throw error;
        // Nobody had its answer.
        isDenied = false;
        await crash();
      }
      object.database.writesLeft = Infinity;
      owed.step(kind, key, object.nowMs, before, usedOf(key), isDenied);
      if (random() < 0.7) await settle();
    } else if (draw < 0.75) {
      await settle();
      if (receiver.diesNext) await crash();
      await object.pass(whole(random, 20_000));
    } else if (draw < 0.85) await crash();
    else if (draw < 0.95) receiver.isAway = !receiver.isAway;
    else if (random() < 0.5) receiver.diesNext = true;
    else {
      await settle();
      void object.ask(key, (each, keyState, nowMs) => each.reset(keyState, nowMs));
      owed.forget(key);
    }
  }
  receiver.isAway = false;
  await crash();
  // The last attempt may be hours away.
  await settle();
  await object.pass(DAY_MS / 2);
  await settle();
  const arrived = new Map([...receiver.arrived].map(([of, ids]) => [of, ids.size]));
  return { owed: owed.counts, arrived };
}

const sorted = (counts: ReadonlyMap<string, number>) =>
  [...counts].toSorted(([one], [other]) => (one < other ? -1 : 1));

beforeAll(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterAll(() => void vi.restoreAllMocks());

describe.each(Object.keys(TABLES) as Kind[])("%s", (kind) => {
  test("each notice that is owed arrives with one id, and no other", async () => {
    const randoms = seededRandoms(announcedSeed(`notices-${kind}`));
    let count = 0;
    for (let run = 0; run < depth(15, 500); run += 1) {
      const { owed, arrived } = await history(kind, randoms(run), 60);
      expect(sorted(arrived)).toEqual(sorted(owed));
      for (const each of owed.values()) count += each;
    }
    expect(count).toBeGreaterThan(depth(20, 1_250));
  });

  const faults: Record<string, Fault> = {
    "notices that are lost at a crash": (rules) => rules.replaceAll(/,"unsent":\[[^\]]*\]/g, ""),
    "notices that get another id at a crash": (rules) => rules.replaceAll('"id":"msg_', '"id":"msg_again_'),
    "thresholds that are forgotten at a crash": (rules) => rules.replaceAll(/,"reached":\[[^\]]*\]/g, ""),
  };
  test.each(Object.keys(faults))("%s are found", async (name) => {
    const randoms = seededRandoms(17);
    let found = 0;
    for (let run = 0; run < 40 && found === 0; run += 1) {
      const { owed, arrived } = await history(kind, randoms(run), 60, faults[name]);
      if (JSON.stringify(sorted(arrived)) !== JSON.stringify(sorted(owed))) found += 1;
    }
    expect(found).toBe(1);
  });
});
