/** Isolates that send over a bad line to an object that loses its memory, or cannot store: each count is stored once. */
import { runInDurableObject } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { Receipt, StatsMessage } from "../../../core/stats/messages.ts";
import { SEND_EVERY_MS, StatsSender, Tally } from "../../../core/stats/tally.ts";
import { Recorder, type StatsObject } from "../../../durable-objects/stats/stats-object.ts";
import { StatsStorage } from "../../../durable-objects/stats/stats-storage.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";
import { depth } from "../../support/depth.ts";
import { seededRandom, seedOr, whole } from "../../support/random.ts";

const { STATS } = env as unknown as { STATS: DurableObjectNamespace<StatsObject> };
const HISTORIES = depth(20, 250);
const SERIES = "decisions api admitted ok isolate";
const DAY_MS = 86_400_000 * 20_000;

class FullStorage extends StatsStorage {
  isFull = false;
  override atomically(work: () => void): void {
    super.atomically(() => {
      work();
      if (this.isFull) throw new Error("the storage is full");
    });
  }
}

interface Isolate {
  readonly tally: Tally;
  readonly sender: StatsSender;
  /** Messages that were sent, by their number. */
  readonly sent: Map<number, StatsMessage>;
  counted: number;
  /** The last message that is confirmed. */
  confirmed: number;
}

/** @param mayEnd whether isolates end, with what they have not sent */
async function history(storage: DurableObjectStorage, random: () => number, mayEnd: boolean): Promise<void> {
  const virtual = new VirtualTime();
  const time = virtual.clock({ ms: DAY_MS });
  const tables = new FullStorage(storage);
  const open = () => {
    const recorder = new Recorder(tables, time, {
      onCounted: () => undefined,
      wakeAfter: (ms) => virtual.at(virtual.nowMs + ms, () => object === recorder && recorder.write()),
    });
    return recorder;
  };
  let object = open();
  let isGood = false;
  let ids = 0;
  const start = (): Isolate => {
    const tally = new Tally();
    ids += 1;
    const id = `isolate-${ids}`;
    const sender = new StatsSender(tally, () => id);
    return { tally, sender, sent: new Map(), counted: 0, confirmed: 0 };
  };
  const isolates = Array.from({ length: 8 }, start);
  const ended: Isolate[] = [];
  /** The object gets it, and may lose its memory, or have no room. */
  const arrive = (message: StatsMessage): Receipt => {
    if (!isGood && random() < 0.1) object = open();
    tables.isFull = !isGood && random() < 0.1;
    return object.push(message);
  };
  const push = async (isolate: Isolate, message: StatsMessage): Promise<Receipt> => {
    const { number, sender, counts, keys } = message;
    const before = isolate.sent.get(number);
    if (before !== undefined)
      expect([sender, counts, keys]).toEqual([before.sender, before.counts, before.keys]);
    isolate.sent.set(number, message);
    const fate = isGood ? 1 : random();
    if (fate < 0.15) throw new Error("lost");
    if (fate < 0.2) await new Promise(() => undefined);
    // A copy comes later, or instead of it.
    if (fate < 0.4)
      virtual.at(virtual.nowMs + whole(random, 60_000), () => {
        try {
          arrive(message);
        } catch {
          // It was not stored.
        }
      });
    if (fate < 0.25) throw new Error("late");
    const receipt = arrive(message);
    if (fate < 0.5) throw new Error("the answer is lost");
    if (fate < 0.6) await new Promise<void>((done) => time.after(whole(random, 30_000), done));
    isolate.confirmed = Math.max(isolate.confirmed, receipt.stored);
    return receipt;
  };
  const request = (isolate: Isolate) => {
    isolate.tally.decided({
      policy: "api",
      key: "a",
      success: true,
      reason: "ok",
      source: "isolate",
      rules: [],
    });
    isolate.counted += 1;
    if (!isolate.sender.isDue(time.nowMs())) return;
    // The request that keeps the message may be ended, and then nothing of it runs any more.
    const isEnded = !isGood && random() < 0.2;
    const its = isEnded ? { ...time, after: () => () => undefined } : time;
    void isolate.sender.begin(its, (message) => push(isolate, message), random() < 0.5 ? 0 : SEND_EVERY_MS);
  };
  let stored = 0;
  const sumOf = ({ sent }: Isolate, upTo: number) =>
    [...sent].reduce((sum, [number, { counts }]) => sum + (number > upTo ? 0 : (counts[SERIES] ?? 0)), 0);
  const expectLaws = () => {
    const all = [...isolates, ...ended];
    const total = object.totals().counts[SERIES] ?? 0;
    expect(total).toBeGreaterThanOrEqual(stored);
    stored = total;
    expect(total).toBeLessThanOrEqual(all.reduce((sum, { counted }) => sum + counted, 0));
    expect(total).toBeGreaterThanOrEqual(all.reduce((sum, each) => sum + sumOf(each, each.confirmed), 0));
  };
  const traffic = async (steps: number, stepMs: () => number) => {
    for (let step = 0; step < steps; step += 1) {
      for (const [index, isolate] of isolates.entries()) {
        if (random() < 0.7 || isGood) request(isolate);
        if (!mayEnd || isGood || random() > 0.02) continue;
        ended.push(isolate);
        isolates[index] = start();
      }
      if (!isGood && random() < 0.05) object = open();
      const untilMs = virtual.nowMs + stepMs();
      virtual.at(untilMs, () => undefined);
      await virtual.run(untilMs, () => undefined);
      // A reader makes the object store what waits: some histories have few.
      if (random() < 0.3) expectLaws();
    }
  };
  await traffic(40, () => whole(random, 8_000));
  isGood = true;
  tables.isFull = false;
  await traffic(6, () => 2 * SEND_EVERY_MS);
  expectLaws();
  const living = isolates.reduce((sum, { counted }) => sum + counted, 0);
  if (!mayEnd) expect(stored).toBe(living);
  expect(stored).toBeGreaterThanOrEqual(living);
  // It is in storage, and not only in memory.
  object = open();
  expectLaws();
}

test.each([
  ["whatever is lost, late or repeated, and whoever ends", false],
  ["also of isolates that end: what was confirmed", true],
])("everything is counted once, %s", async (_, mayEnd) => {
  const first = seedOr(1);
  for (let seed = first; seed < first + HISTORIES; seed += 1)
    await runInDurableObject(STATS.getByName(crypto.randomUUID()), async (_object, { storage }) =>
      history(storage, seededRandom(seed), mayEnd).catch((error: unknown) => {
        throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
      }),
    );
});
