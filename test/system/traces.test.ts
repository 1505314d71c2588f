/** What Weir adds to the spans of Cloudflare's tracing, on a workerd that traces every call. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { BoundClient } from "../support/bound-client.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const SUPPORT = join(import.meta.dirname, "..", "support");
const tail = join(SUPPORT, "trace-events.mjs");
const POLICIES = {
  api: { algorithm: "token-bucket", limit: 100_000, window: "1h" },
  once: { algorithm: "token-bucket", limit: 1, window: "1h" },
  queue: { algorithm: "token-bucket", limit: 2, window: "1s", burst: 1, maxWait: "30s" },
};
/** In every key, and in nothing else. */
const SECRET = "of-nobody-else";

type Attributes = Readonly<Record<string, unknown>>;

/** An event of a trace, as the runtime passes it to a tail. */
interface TraceEvent {
  readonly invocationId: string;
  readonly spanContext: { readonly spanId?: string };
  readonly event: {
    readonly type: string;
    readonly entrypoint?: string;
    readonly spanId?: string;
    readonly name?: string;
    readonly info?: unknown;
  };
}

/** A limiter whose traces are read. */
class Traced {
  readonly #state = makeState();
  #serving: Serving | undefined;
  #printed = "";
  #calls = 0;

  async start(log?: object): Promise<void> {
    this.#serving = await serveBundle(this.#state, POLICIES, {
      tail,
      caller: join(SUPPORT, "bound-caller.mjs"),
      callerProps: { BOUND: { scopes: ["limit"] } },
      ...(log && { log }),
      onOutput: (text) => (this.#printed += text),
    });
  }

  async stop(): Promise<void> {
    await this.#serving?.stop("SIGKILL");
    removeState(this.#state);
  }

  get #events(): readonly TraceEvent[] {
    const lines = this.#printed.split("\n").slice(0, -1);
    return lines.flatMap((line) =>
      line.startsWith("trace ") ? [JSON.parse(line.slice("trace ".length)) as TraceEvent] : [],
    );
  }

  /** The attributes of Weir on spans of the answered invocations whose onset is so. */
  async attributesOf(isSo: (onset: TraceEvent["event"]) => boolean, count = 1): Promise<Attributes[]> {
    const found = () => {
      const events = this.#events;
      const ended = new Set(
        events.flatMap(({ event, invocationId }) => (event.type === "return" ? [invocationId] : [])),
      );
      return events.filter(
        ({ event, invocationId }) => event.type === "onset" && ended.has(invocationId) && isSo(event),
      );
    };
    await expect.poll(() => found().length, { timeout: 20_000 }).toBeGreaterThanOrEqual(count);
    return found().map(({ invocationId }) =>
      Object.fromEntries(
        this.#events
          .filter((each) => each.invocationId === invocationId && each.event.type === "attributes")
          .flatMap(({ event }) => event.info as { readonly name: string; readonly value: unknown }[])
          .filter(({ name }) => name.startsWith("weir."))
          .map(({ name, value }) => [name, value]),
      ),
    );
  }

  /** Makes a call, and returns its answer and the attributes of its span. */
  async call(path: string, body: object): Promise<[answer: Attributes, attributes: Attributes]> {
    const { answer, attributes } = await this.send(path, body);
    return [answer, await attributes()];
  }

  async send(path: string, body: object) {
    const number = String((this.#calls += 1));
    const headers = {
      authorization: `Bearer ${TOKENS.full}`,
      "content-type": "application/json",
      "x-call": number,
    };
    const url = `${this.#serving?.url}${path}`;
    const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
    const answer = (await response.json()) as Attributes;
    const isThis = ({ info }: TraceEvent["event"]) => {
      const sent = (info as { readonly headers?: readonly Attributes[] }).headers ?? [];
      return sent.some(({ name, value }) => name === "x-call" && value === number);
    };
    return { answer, attributes: async () => (await this.attributesOf(isThis))[0] ?? {} };
  }

  bound(): BoundClient {
    return new BoundClient(this.#serving?.callerUrl ?? "", "BOUND");
  }

  /** The values of all attributes that Weir has set so far. */
  get values(): readonly string[] {
    const infos = this.#events.flatMap(({ event }) => (event.type === "attributes" ? [event.info] : []));
    return (infos.flat() as { readonly name: string; readonly value: unknown }[])
      .filter(({ name }) => name.startsWith("weir."))
      .map(({ value }) => String(value));
  }
}

const traced = new Traced();
beforeAll(() => traced.start({ traces: true }));
afterAll(() => traced.stop());

const spanOf = ({ policy, success, reason, source }: Attributes) => ({
  "weir.policy": policy,
  "weir.outcome": success === true ? "admitted" : "denied",
  "weir.reason": reason,
  "weir.source": source,
});

test("the span of a call has its decision, whoever made that", async () => {
  const sent = [];
  // Only of a busy key does the isolate decide.
  for (let call = 0; call < 20; call += 1)
    sent.push(await traced.send("/v1/limit", { policy: "api", key: `hot-${SECRET}` }));
  const sources = new Set(sent.map(({ answer }) => answer["source"]));
  expect(sources).toEqual(new Set(["object", "isolate"]));
  for (const { answer, attributes } of sent) expect(await attributes()).toEqual(spanOf(answer));
  await traced.call("/v1/limit", { policy: "once", key: SECRET });
  const [denied, span] = await traced.call("/v1/limit", { policy: "once", key: SECRET });
  expect(denied).toMatchObject({ success: false, reason: "quota" });
  expect(span).toEqual(spanOf(denied));
});

test("the span of a call that waits says how long", async () => {
  const call = { policy: "queue", key: SECRET, waitMs: 20_000 };
  const calls = await Promise.all(Array.from({ length: 3 }, () => traced.call("/v1/limit", call)));
  const waited = calls.filter(([answer]) => typeof answer["waitedMs"] === "number");
  expect(waited.length).toBeGreaterThan(0);
  for (const [answer, span] of waited)
    expect(span).toEqual({ ...spanOf(answer), "weir.waited_ms": answer["waitedMs"] });
});

test("of several checks the span has a denied one", async () => {
  const checks = ["once", "api"].map((policy) => ({ policy, key: `all-${SECRET}` }));
  await traced.call("/v1/limit/all", { checks });
  const [answer, span] = await traced.call("/v1/limit/all", { checks });
  const denied = (answer["decisions"] as Attributes[]).find(({ success }) => success !== true) ?? {};
  expect(denied).toMatchObject({ policy: "once" });
  expect(span).toEqual(spanOf(denied));
});

test("of calls at once, which share messages, each span has its own decision", async () => {
  const calls = Array.from({ length: 60 }, (_, index) =>
    traced.call("/v1/limit", { policy: index % 2 === 0 ? "once" : "api", key: `${index % 6}-${SECRET}` }),
  );
  for (const [answer, span] of await Promise.all(calls)) expect(span).toEqual(spanOf(answer));
});

test("a call over a service binding has it too", async () => {
  const { body } = await traced.bound().call("limit", { policy: "once", key: `bound-${SECRET}` });
  const [span] = await traced.attributesOf(({ entrypoint }) => entrypoint === "Limiter");
  expect(body).toMatchObject({ success: true, policy: "once" });
  expect(span).toEqual(spanOf(body as Attributes));
});

test("no key is in an attribute", () => {
  expect(traced.values.length).toBeGreaterThan(0);
  expect(traced.values.filter((value) => value.includes(SECRET))).toEqual([]);
});

test("without the setting Weir adds nothing", async () => {
  const plain = new Traced();
  try {
    await plain.start();
    const [answer, span] = await plain.call("/v1/limit", { policy: "once", key: SECRET });
    expect(answer["success"]).toBe(true);
    expect(span).toEqual({});
  } finally {
    await plain.stop();
  }
});
