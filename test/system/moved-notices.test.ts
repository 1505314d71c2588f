/** Notices of keys that move to other objects while the receiver is away: none is lost, and none has two ids. */
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { HttpClient } from "../support/http-client.ts";
import { NOTICES_SECRET, NoticeReceiver } from "../support/notice-receiver.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PATIENT = { timeout: 240_000 };
const KEYS = Array.from({ length: 12 }, (_, index) => `key ${index}`);
const NOTIFY = [0.2, 0.4, 0.6];
const RULES = {
  bucket: { algorithm: "token-bucket", limit: 10, window: "30d", notify: NOTIFY },
  month: { algorithm: "fixed-window", limit: 10, window: "1 month", notify: NOTIFY },
};
const POLICIES = Object.keys(RULES);

const state = makeState();
const receiver = new NoticeReceiver();
let serving: Serving | undefined;
let client: HttpClient;
let webhook = "";
beforeAll(async () => {
  webhook = await receiver.listen();
});
afterAll(async () => {
  await stop();
  receiver.close();
  removeState(state);
});

/** Serves the folder with so many objects. */
async function serve(objects: number, objectsBefore?: number): Promise<void> {
  const layout = { objects, ...(objectsBefore !== undefined && { objectsBefore }), deadlineMs: 10_000 };
  const policies = Object.fromEntries(
    Object.entries(RULES).map(([name, rule]) => [name, { ...rule, ...layout }]),
  );
  serving = await serveBundle(state, policies, { notices: { target: { webhook }, secret: NOTICES_SECRET } });
  client = new HttpClient(serving.url, 8);
}

async function stop(): Promise<void> {
  client?.close();
  await serving?.stop("SIGKILL");
  serving = undefined;
}

/** A call with an idempotency key is written before it is answered. */
async function take(keys: readonly string[], cost: number, name: string): Promise<void> {
  for (const policy of POLICIES)
    for (const key of keys) {
      const call = { policy, key, cost, idempotencyKey: `${name} ${policy} ${key}` };
      const { status, body } = await client.call("POST", "/v1/limit", call);
      expect([status, body["success"]]).toEqual([200, true]);
    }
}

test("keys go from 4 objects to 32 and back with the notices that have not arrived", PATIENT, async () => {
  const some = KEYS.slice(0, 8);
  receiver.manner = "fail";
  await serve(4);
  await take(KEYS, 2, "first");
  await stop();
  // Some keys move with their notices, and reach the next threshold there. Those of the others stay behind.
  await serve(32, 4);
  await take(some, 2, "second");
  await stop();
  await serve(4, 32);
  await take(some.slice(0, 4), 2, "third");
  receiver.manner = "ok";
  const expected = POLICIES.flatMap((policy) =>
    KEYS.flatMap((key, index) =>
      NOTIFY.slice(0, index < 4 ? 3 : index < 8 ? 2 : 1).map((threshold) => `${policy} ${key} ${threshold}`),
    ),
  );
  const of = ({ data: { policy, key, threshold } }: (typeof receiver.attempts)[number]) =>
    `${policy} ${key} ${threshold}`;
  let round = 0;
  await eventually(async () => {
    // A notice that waits for its next attempt goes out with a new one.
    await client.call("POST", "/v1/limit", { policy: "bucket", key: `waker ${(round += 1)}`, cost: 2 });
    const arrived = new Set(receiver.accepted.map(of));
    expect(expected.filter((each) => !arrived.has(each))).toEqual([]);
  });
  const ids = Map.groupBy(receiver.attempts, of);
  for (const each of expected) expect(new Set(ids.get(each)?.map(({ id }) => id)).size, each).toBe(1);
});
