/** A worker that mails a customer once when a limit is nearly used up. Notices of Weir come by webhook or by Queue. */
import { DurableObject } from "cloudflare:workers";
import { Hono } from "hono";
import { Webhook } from "standardwebhooks";

interface Env {
  /** The same secret as Weir's. */
  readonly NOTICES_SECRET: string;
  readonly MAIL_URL: string;
  readonly MAILS: DurableObjectNamespace<Mails>;
}

interface Notice {
  readonly type: string;
  readonly timestamp: string;
  readonly data: {
    readonly policy: string;
    readonly rule: string;
    readonly key: string;
    readonly threshold: number;
    readonly limit: number;
    readonly used: number;
    readonly resetAfterMs: number;
  };
}

const app = new Hono<{ Bindings: Env }>();

app.post("/notices", async (context) => {
  // The signature is of the bytes that came, so they are parsed only afterwards.
  const text = await context.req.text();
  let notice: Notice;
  try {
    notice = new Webhook(context.env.NOTICES_SECRET).verify(text, context.req.header()) as Notice;
  } catch {
    return context.text("the signature is wrong, or too old", 401);
  }
  await mail(context.env, context.req.header("webhook-id") ?? "", notice);
  return context.body(null, 204);
});

/** What throws is answered with 500, and Weir sends the notice again. */
async function mail({ MAILS }: Env, id: string, notice: Notice): Promise<void> {
  // Notices of other kinds may come one day.
  if (notice.type === "limit.threshold") await MAILS.getByName(id).send(id, notice);
}

/** An object for each notice: the same notice may come twice, also at once. */
export class Mails extends DurableObject<Env> {
  async send(id: string, { data, timestamp }: Notice): Promise<void> {
    await this.ctx.blockConcurrencyWhile(async () => {
      if (this.ctx.storage.kv.get("sentAt") !== undefined) return;
      const part = `${Math.round(data.threshold * 100)} %`;
      const response = await fetch(this.env.MAIL_URL, {
        method: "POST",
        // If this object ends before it has stored what it did, its provider sends no second mail.
        headers: { "content-type": "application/json", "idempotency-key": id },
        body: JSON.stringify({
          to: data.key,
          subject: `${part} of ${data.policy} are used`,
          text: `${data.used} of ${data.limit} were used at ${timestamp}.`,
        }),
        signal: AbortSignal.timeout(4_000),
      });
      await response.body?.cancel();
      if (!response.ok) throw new Error(`no mail was sent: the provider answers ${response.status}`);
      this.ctx.storage.kv.put("sentAt", timestamp);
      // Weir sends a notice for a day at most.
      await this.ctx.storage.setAlarm(Date.now() + 2 * 86_400_000);
    });
  }

  override async alarm(): Promise<void> {
    await this.ctx.storage.deleteAll();
  }
}

export default {
  fetch: app.fetch,
  /** A message of a Queue has the id in its body, and no signature: only Weir can write to its Queue. */
  async queue({ messages }, env): Promise<void> {
    for (const message of messages)
      try {
        const { id, ...notice } = message.body;
        await mail(env, id, notice);
        message.ack();
      } catch (error) {
        console.error(`a notice comes again: ${String(error)}`);
        message.retry({ delaySeconds: 60 });
      }
  },
} satisfies ExportedHandler<Env, Notice & { readonly id: string }>;
