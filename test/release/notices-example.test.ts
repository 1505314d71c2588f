import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
/** examples/notices beside Weir: by webhook and by Queue, one mail for each notice. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Webhook } from "standardwebhooks";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ROOT } from "../../scripts/project.ts";
import { eventually } from "../support/eventually.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { NOTICES_SECRET } from "../support/notice-receiver.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { startWranglerDev, type WranglerDev } from "../support/wrangler-dev.ts";

interface Mail {
  readonly id: string;
  readonly to: string;
  readonly subject: string;
  readonly text: string;
}
const EXAMPLE = "examples/notices/wrangler.toml";
const POLICY = { algorithm: "token-bucket", limit: 5, window: "30d", notify: [0.8] };

const mails: Mail[] = [];
/** So many calls of the provider fail. */
let failures = 0;
let provider: Server;
let vars: Readonly<Record<string, string>>;
beforeAll(async () => {
  provider = createServer((request, response) => {
    let text = "";
    request.on("data", (data: Buffer) => (text += data.toString()));
    request.on("end", () => {
      failures -= 1;
      if (failures >= 0) return response.writeHead(503).end();
      mails.push({
        id: String(request.headers["idempotency-key"]),
        ...(JSON.parse(text) as Omit<Mail, "id">),
      });
      return response.end();
    });
  });
  await new Promise<void>((done) => provider.listen(0, "127.0.0.1", done));
  const { port } = provider.address() as AddressInfo;
  vars = { MAIL_URL: `http://127.0.0.1:${port}/mails`, NOTICES_SECRET };
});
afterAll(() => provider.close());

async function take(url: string, key: string, cost: number): Promise<void> {
  const response = await fetch(`${url}/v1/limit`, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.limit}`, "content-type": "application/json" },
    body: JSON.stringify({ policy: "messages", key, cost }),
  });
  expect(await response.json()).toMatchObject({ success: true });
}
const of = (key: string) => mails.filter(({ to }) => to === key);

describe("by webhook", () => {
  const state = makeState();
  let dev: WranglerDev;
  beforeAll(async () => {
    dev = await startWranglerDev([EXAMPLE], vars);
  });
  afterAll(async () => {
    await dev.stop();
    removeState(state);
  });

  test("a mail is sent when a threshold is reached, and one although the provider failed before", async () => {
    const target = { webhook: `${dev.url}/notices` };
    const weir = await serveBundle(
      state,
      { messages: POLICY },
      { notices: { target, secret: NOTICES_SECRET } },
    );
    try {
      await take(weir.url, "ann@example.com", 4);
      await eventually(() => expect(of("ann@example.com")).toHaveLength(1));
      expect(of("ann@example.com")[0]).toMatchObject({
        subject: "80 % of messages are used",
        text: expect.stringMatching(/^4 of 5 were used at \d{4}-/),
      });
      failures = 1;
      await take(weir.url, "bob@example.com", 4);
      await eventually(() => expect(of("bob@example.com")).toHaveLength(1));
    } finally {
      await weir.stop();
    }
  });

  test("what comes twice is mailed once, and what is not signed is refused", async () => {
    const data = { policy: "messages", rule: "messages", key: "cat@example.com" };
    const numbers = { threshold: 1, limit: 5, used: 5, resetAfterMs: 1 };
    const now = new Date();
    const body = JSON.stringify({
      type: "limit.threshold",
      timestamp: now.toISOString(),
      data: { ...data, ...numbers },
    });
    const send = (id: string, signature: string) =>
      fetch(`${dev.url}/notices`, {
        method: "POST",
        headers: {
          "content-type": "application/json",
          "webhook-id": id,
          "webhook-timestamp": String(Math.floor(now.getTime() / 1_000)),
          "webhook-signature": signature,
        },
        body,
      });
    const signed = (id: string) => new Webhook(NOTICES_SECRET).sign(id, now, body);
    const answers = await Promise.all([1, 2, 3].map(() => send("msg_same", signed("msg_same"))));
    expect(answers.map(({ status }) => status)).toEqual([204, 204, 204]);
    expect(of("cat@example.com")).toHaveLength(1);
    expect((await send("msg_other", signed("msg_same"))).status).toBe(401);
    expect((await send("msg_other", "")).status).toBe(401);
    expect(of("cat@example.com")).toHaveLength(1);
  });
});

test("by Queue, from Weir's worker to the example's", async () => {
  const folder = mkdtempSync(join(tmpdir(), "weir-queue-"));
  const copy = (from: string, main: string, change: (text: string) => string) => {
    const file = join(folder, `${main.replaceAll("/", "-")}.toml`);
    const text = readFileSync(join(ROOT, from), "utf8");
    writeFileSync(file, change(text.replace(/^main = .*$/m, `main = ${JSON.stringify(join(ROOT, main))}`)));
    return file;
  };
  const weir = copy("wrangler.toml", "worker/index.ts", (text) => {
    const small = text.replace('limit = 1000\nwindow = "30d"', 'limit = 5\nwindow = "30d"\nnotify = [0.8]');
    const queue = '[[queues.producers]]\nbinding = "NOTICES"\nqueue = "weir-notices"\n';
    return `${small.replace(/^build = .*$/m, "")}\n${queue}`;
  });
  // `--var` is for the first worker alone.
  const example = copy(EXAMPLE, "examples/notices/index.ts", (text) =>
    text.replace(/^MAIL_URL = .*$/m, `MAIL_URL = ${JSON.stringify(vars["MAIL_URL"])}`),
  );
  const dev = await startWranglerDev([weir, example], {
    JURISDICTIONS: "ignored",
    API_TOKENS: JSON.stringify(TEST_TOKENS),
  });
  try {
    await take(dev.url, "dan@example.com", 4);
    await eventually(() => expect(of("dan@example.com")).toHaveLength(1));
  } finally {
    await dev.stop();
    rmSync(folder, { recursive: true, force: true });
  }
});
