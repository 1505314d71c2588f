/** How a notice leaves: to a Queue of Cloudflare, or to a webhook as https://www.standardwebhooks.com says. */
import { Webhook } from "standardwebhooks";
import type { Notice } from "../../core/accounts/notices.ts";
import { instantOf, instantText, readClockMs } from "../../core/clock.ts";
import type { NoticeTarget } from "../../core/policies/parse-notices.ts";
import { publicName } from "../../core/policies/policy.ts";

/** A notice, and of what it is. */
export interface Addressed {
  readonly policy: string;
  readonly key: string;
  readonly rule: string;
  readonly notice: Notice;
}

/** Sends a notice. @throws Error when it has not arrived, or that is not known */
export type Deliver = (addressed: Addressed) => Promise<void>;

/** A receiver that has not answered by then gets it again. */
const PATIENCE_MS = 5_000;

export function deliveryTo(target: NoticeTarget): Deliver {
  if ("queue" in target) {
    const { queue } = target;
    // A message of a Queue has no headers, so the id is in it.
    return async (addressed) => {
      await queue.send({ id: addressed.notice.id, ...bodyOf(addressed) });
    };
  }
  const { webhook, secret } = target;
  const signer = new Webhook(secret);
  return (addressed) => post(webhook, signer, addressed);
}

async function post(webhook: string, signer: Webhook, addressed: Addressed): Promise<void> {
  const { id } = addressed.notice;
  const body = JSON.stringify(bodyOf(addressed));
  // The time of this attempt: receivers refuse old ones.
  const sentAt = instantOf(readClockMs());
  const response = await fetch(webhook, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "webhook-id": id,
      "webhook-timestamp": String(Math.floor(sentAt.getTime() / 1_000)),
      "webhook-signature": signer.sign(id, sentAt, body),
    },
    body,
    // A receiver must not make the limiter call another address.
    redirect: "manual",
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  // It may be of any length, and says nothing.
  await response.body?.cancel();
  if (!response.ok) throw new Error(`it answers ${response.status}`);
}

function bodyOf({ policy, key, rule, notice }: Addressed): object {
  const { plan, threshold, limit, used, resetAfterMs, atMs } = notice;
  return {
    type: "limit.threshold",
    timestamp: instantText(atMs),
    data: {
      policy: publicName(policy),
      rule,
      key,
      ...(plan !== undefined && { plan }),
      threshold,
      limit,
      used,
      resetAfterMs,
    },
  };
}
