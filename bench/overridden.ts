/**
 * What overrides cost a request, end to end: the built bundle on plain workerd, with 10,000 overrides of one policy and none
 * of another. Calls take turns in rounds: of the policy without overrides, of keys that have none, and of keys that have one.
 */
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { CONNECTIONS, load, requestsFor, type Requests } from "./load.ts";

const HOT_ROUNDS = Number(process.env["ROUNDS"] ?? 16);
const HOT_SECONDS = 1;
/** Calls of each kind in one round of cold keys. Each key of the first pass is called once. */
const SLICE = 250;
const OVERRIDES = 10_000;
const PLANS = 10;

const BUCKET = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: 10_000 };
/** Policies with the same limits and different layouts of objects. Only `given` and `given-16` have overrides. */
export const POLICIES = {
  none: BUCKET,
  given: BUCKET,
  "none-16": { ...BUCKET, objects: 16 },
  "given-16": { ...BUCKET, objects: 16 },
};

/**
 * The keys of calls: their policy has no overrides; or they have none; or each has that of one of ten plans, or one of
 * its own.
 */
const KINDS = ["none", "others", "plan", "own"] as const;
type Kind = (typeof KINDS)[number];

/** A kind's processor time and time of a request, in µs, and the ratio to the first kind, by round and in all. */
export interface Compared {
  readonly kind: Kind;
  readonly processorUs: number;
  readonly us: number;
  readonly processorRatio: number;
  readonly ratio: number;
  readonly quartiles: readonly [number, number];
}

/** The server under test. */
export interface ServerUnderTest {
  readonly url: string;
  readonly pid: number;
  readonly token: string;
}

/** Writes 10,000 overrides of a policy: one half has the limits of ten plans, the other limits of its own. */
export async function importOverrides({ url, token }: ServerUnderTest, policy: string): Promise<void> {
  const figures = (more: number) => ({ limit: 1_000_001 + more, burst: 1_000_001 + more });
  const all = Array.from({ length: OVERRIDES / 2 }, (_, each) => [
    [keyOf("plan", each), figures(each % PLANS)],
    [keyOf("own", each), figures(each)],
  ]);
  const own = Object.fromEntries(all.flat()) as Record<string, object>;
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const body = JSON.stringify({ policies: {}, overrides: { [policy]: own }, tokens: {} });
  const written = await fetch(`${url}/v1/catalog`, { method: "PUT", headers, body });
  if (!written.ok) throw new Error(`not written: ${await written.text()}`);
  await written.text();
}

/** A key of the kind; all have equally long names. */
function keyOf(kind: Kind, each: number): string {
  return `${kind.padEnd(6, "-")}:${String(each).padStart(5, "0")}`;
}

function requestsOf(
  { url, token }: ServerUnderTest,
  kind: Kind,
  layout: string,
  keys: readonly number[],
): Requests {
  const policy = `${kind === "none" ? "none" : "given"}${layout}`;
  const bodies = keys.map((each) => JSON.stringify({ policy, key: keyOf(kind, each), cost: 1 }));
  return requestsFor(`${url}/v1/limit`, token, bodies);
}

/** The memory of a process, in MiB. */
export function memoryMiB(pid: number): number {
  const kib = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  return Number(kib) / 1_024;
}

/** The processor time that a process has had, in µs. */
export function processorUs(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.split(" ") ?? [];
  // Of the fields after the name, the 12th and 13th: user and system, in hundredths of a second.
  return (Number(fields[11]) + Number(fields[12])) * 10_000;
}

/** One hot key of each kind. */
export async function compareHot(asked: ServerUnderTest): Promise<readonly Compared[]> {
  const requests = KINDS.map((kind) => requestsOf(asked, kind, "", [7]));
  for (const each of requests) await load(each, 2);
  return await compare(asked, HOT_ROUNDS, async (which) => {
    const { count } = await load(requests[which] as Requests, HOT_SECONDS);
    return count;
  });
}

/** Keys that are called once in each pass. In the first they are new; in a later one their objects know them. */
export async function compareCold(asked: ServerUnderTest, layout: "" | "-16"): Promise<readonly Compared[]> {
  const count = OVERRIDES / 2;
  const order = Array.from({ length: count }, (_, each) => (each * 7_919) % count);
  // Objects take milliseconds to start, and some 30 KiB each.
  const keysOfKind = layout === "" ? count / 5 : count;
  return await compare(asked, keysOfKind / SLICE, async (which, round) => {
    const keys = order.slice(round * SLICE, (round + 1) * SLICE);
    await sendOnce(requestsOf(asked, KINDS[which] ?? "none", layout, keys));
    return keys.length;
  });
}

async function compare(
  { pid }: ServerUnderTest,
  rounds: number,
  ask: (which: number, round: number) => Promise<number>,
): Promise<readonly Compared[]> {
  const used = KINDS.map((kind) => ({ kind, count: 0, processorUs: 0, us: 0, ratios: [] as number[] }));
  for (let round = 0; round < rounds; round += 1) {
    const times = KINDS.map(() => 0);
    // Each is first as often as the others.
    for (let turn = 0; turn < KINDS.length; turn += 1) {
      const which = (turn + round) % KINDS.length;
      const [sinceMs, sinceUs] = [performance.now(), processorUs(pid)];
      const count = await ask(which, round);
      const [us, ofProcessor] = [(performance.now() - sinceMs) * 1_000, processorUs(pid) - sinceUs];
      times[which] = us / count;
      const mine = used[which];
      if (mine === undefined) continue;
      mine.count += count;
      mine.us += us;
      mine.processorUs += ofProcessor;
    }
    for (const [which, mine] of used.entries()) mine.ratios.push((times[which] ?? 0) / (times[0] ?? 1));
  }
  const per = used.map(({ count, us, processorUs: all }) => ({ us: us / count, processor: all / count }));
  return used.map(({ kind, ratios }, which) => {
    const at = (share: number) => ratios.toSorted((a, b) => a - b)[Math.floor(share * ratios.length)] ?? 0;
    const [mine, first] = [per[which] ?? { us: 0, processor: 0 }, per[0] ?? { us: 1, processor: 1 }];
    return {
      kind,
      processorUs: mine.processor,
      us: mine.us,
      processorRatio: mine.processor / first.processor,
      ratio: at(0.5),
      quartiles: [at(0.25), at(0.75)],
    };
  });
}

/**
 * Sends each request once, over as many connections as a load has.
 *
 * @throws Error when an answer is no decision, or a connection ends
 */
async function sendOnce({ port, bytes }: Requests): Promise<void> {
  let next = 0;
  const drive = () =>
    new Promise<void>((done, fail) => {
      const socket = connect(port, "127.0.0.1");
      socket.setNoDelay(true).setEncoding("latin1");
      let received = "";
      const send = () => {
        received = "";
        const request = bytes[next];
        next += 1;
        if (request !== undefined) return void socket.write(request);
        socket.removeAllListeners("close").destroy();
        return done();
      };
      socket.on("connect", send);
      socket.on("error", fail);
      socket.on("close", () => fail(new Error("the server closed a connection")));
      socket.on("data", (data: string) => {
        received += data;
        const end = received.indexOf("\r\n\r\n");
        if (end < 0 || received.length < end + 4 + Number(/content-length: (\d+)/i.exec(received)?.[1]))
          return;
        if (!received.startsWith("HTTP/1.1 200") || received.includes('"degraded"'))
          return fail(new Error(`not a decision: ${received}`));
        send();
      });
    });
  await Promise.all(Array.from({ length: CONNECTIONS }, drive));
}
