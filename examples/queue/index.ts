/**
 * A queue's consumer within a limit: mails that a customer may not send yet go back to the queue until they may. A queue
 * delivers a message at least once, so its id is the idempotency key: a message that comes again is not charged again.
 */
import type { LimiterService } from "weir-limiter";

interface Mail {
  readonly customer: string;
  /** How many receivers it has. */
  readonly units: number;
}

interface Env {
  readonly LIMITER: LimiterService;
  readonly MAILS: Queue<Mail>;
  /** Takes a mail as JSON. It must send a mail with a known `id` only once. */
  readonly MAIL_URL: string;
}

const POLICY = "messages";
/** The longest delay that a queue takes, in seconds: 12 hours. */
const MAX_DELAY_S = 43_200;
/** Without an answer of the limiter, in seconds. */
const DELAY_S = 30;

export default {
  async fetch(request, env): Promise<Response> {
    await env.MAILS.send(await request.json());
    return new Response(undefined, { status: 202 });
  },

  async queue({ messages }, env): Promise<void> {
    for (const message of messages) {
      try {
        await handle(message, env);
      } catch (error) {
        // The limiter refused the call, or the provider is away. The others go on.
        console.error(error);
        message.retry({ delaySeconds: DELAY_S });
      }
    }
  },
} satisfies ExportedHandler<Env, Mail>;

async function handle(message: Message<Mail>, env: Env): Promise<void> {
  const { customer, units } = message.body;
  const call = { policy: POLICY, key: `customer:${customer}`, cost: units, idempotencyKey: message.id };
  const { success, retryAfterMs } = await env.LIMITER.limit(call);
  if (!success) {
    // `null`: more than the limit, so it never passes. It ends in the dead letter queue.
    const seconds = typeof retryAfterMs === "number" ? Math.ceil(retryAfterMs / 1_000) : MAX_DELAY_S;
    return message.retry({ delaySeconds: Math.min(seconds, MAX_DELAY_S) });
  }
  const mail = { id: message.id, customer, units };
  const { ok } = await fetch(env.MAIL_URL, { method: "POST", body: JSON.stringify(mail) });
  // It is charged, and its next delivery is not.
  if (ok) message.ack();
  else message.retry();
}
