import { expect, test } from "vitest";
import { QueuedCall } from "../../client/transports/batch-queue.ts";
import { type LimiterStub, mayPass, sendTwice } from "../../client/transports/send-batch.ts";
import { inTime } from "../../core/clock.ts";
import type { BatchedCall } from "../../core/protocol/messages.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

const failure = (fields: object) => Object.assign(new Error("it failed"), fields);
const CUT = { retryable: true };
const OVERLOADED = { retryable: true, overloaded: true };

/** Makes a call whose attempts fail one after the other, each after so long. Says what came of it, and when. */
async function attempted(failures: readonly object[], isRepeatable: boolean, eachMs = 10, deadlineMs = 100) {
  const virtual = new VirtualTime();
  const time = virtual.clock({ ms: 0 });
  let attempts = 0;
  const attempt = () => {
    const fields = failures[attempts];
    attempts += 1;
    return new Promise<string>((resolve, reject) => {
      time.after(eachMs, () => (fields === undefined ? resolve("done") : reject(failure(fields))));
    });
  };
  let ended = "";
  const at = () => ` at ${virtual.nowMs}`;
  void inTime(time, deadlineMs, attempt, { mayRepeat: isRepeatable ? mayPass : undefined }).then(
    (answer) => (ended = answer + at()),
    (error: unknown) => (ended = String(error) + at()),
  );
  await virtual.run(10_000, () => undefined);
  return { attempts, ended };
}

test.each<[string, readonly object[], boolean, number, string]>([
  ["may pass is repeated", [CUT], true, 2, "done at 20"],
  ["was lost with its object is repeated", [{ durableObjectReset: true }], true, 2, "done at 20"],
  ["fails twice has failed", [CUT, CUT], true, 2, "Error: it failed at 20"],
  ["may have been counted is not repeated", [CUT], false, 1, "Error: it failed at 10"],
  ["found its object overloaded is not repeated", [OVERLOADED], true, 1, "Error: it failed at 10"],
  ["the object threw is not repeated", [{ remote: true }], true, 1, "Error: it failed at 10"],
])("a call that %s", async (_, failures, isRepeatable, attempts, ended) => {
  expect(await attempted(failures, isRepeatable)).toEqual({ attempts, ended });
});

test("both attempts have one deadline, and after it there is no second one", async () => {
  const overdue = "Error: deadline of 100 ms passed at 100";
  expect(await attempted([CUT], true, 60)).toEqual({ attempts: 2, ended: overdue });
  expect(await attempted([CUT], true, 120)).toEqual({ attempts: 1, ended: overdue });
});

const about = { policy: "p", key: "k" };
const LEASE = { id: "a", cost: 1, ttlMs: 40, waitMs: 0 };
const REPEATED: readonly BatchedCall[] = [
  { giveBack: { policy: "p", returned: [] } },
  { limit: { ...about, cost: 0 } },
  { limit: { ...about, cost: 3, idempotencyKey: "once" } },
  { reserve: { ...about, cost: 0, holder: "h", turn: 1, ttlMs: 40, isShort: false, rules: {} } },
  { operation: { op: "release", ...about, id: "a" } },
  { operation: { op: "settle", ...about, id: "a", used: 2 } },
  { operation: { op: "lease", ...about, ...LEASE, idempotencyKey: "once" } },
];
const NOT_REPEATED: readonly BatchedCall[] = [
  { limit: { ...about, cost: 1 } },
  { giveBack: { policy: "p", returned: [] }, limit: { ...about, cost: 1 } },
  { reserve: { ...about, cost: 1, holder: "h", turn: 1, ttlMs: 40, isShort: false, rules: {} } },
  { operation: { op: "lease", ...about, ...LEASE } },
  { operation: { op: "hold", ...about, cost: 1, ttlMs: 40 } },
];

/** Sends calls to an object that fails the first message. Says which calls the second one had, and the answers. */
async function sent(calls: readonly QueuedCall[], fields: object) {
  const messages: (readonly BatchedCall[])[] = [];
  const stub = {
    reserve: (message: { readonly calls: string }) => {
      const batch = JSON.parse(message.calls) as BatchedCall[];
      messages.push(batch);
      if (messages.length === 1) return Promise.reject(failure(fields));
      return Promise.resolve(JSON.stringify(batch.map((_, index) => ({ rules: [], index }))));
    },
  } as unknown as LimiterStub;
  const time = new VirtualTime().clock({ ms: 1_000 });
  const answers = await sendTwice(() => stub, calls, time).catch((error: unknown) => String(error));
  return { messages, answers };
}

test("of a message that failed only the calls go again that take effect once, and that somebody waits for", async () => {
  const late = new QueuedCall(REPEATED[1] as BatchedCall, 999);
  const calls = [...NOT_REPEATED, ...REPEATED].map((call) => new QueuedCall(call, 2_000));
  const { messages, answers } = await sent([late, ...calls], CUT);
  expect(messages).toHaveLength(2);
  expect(messages[1]).toEqual(REPEATED);
  const failed = { failed: "Error: it failed" };
  const again = REPEATED.map((_, index) => ({ rules: [], index }));
  expect(answers).toEqual([failed, ...NOT_REPEATED.map(() => failed), ...again]);
});

test("a message to an overloaded object, or with nothing to repeat, is sent once", async () => {
  const calls = [...NOT_REPEATED, ...REPEATED].map((call) => new QueuedCall(call, 2_000));
  expect((await sent(calls, OVERLOADED)).messages).toHaveLength(1);
  expect((await sent(calls.slice(0, NOT_REPEATED.length), CUT)).messages).toHaveLength(1);
});
