/** A worker with the service binding LIMITER that makes thousands of random calls for one request. */
import { openApiDocument } from "../../../../worker/api/openapi.ts";
import type { Limiter } from "../../../../worker/rpc/limiter.ts";
import { seededRandom } from "../../random.ts";
import { Operations, type OpenApi } from "../openapi-operations.ts";
import { LiveIds } from "../valid-calls.ts";
import { faultInAnswer, faultInError } from "./binding-laws.ts";
import { drawnCall, type DrawnCall } from "./drawn-call.ts";
import { isGrant, misuse } from "./grants.ts";

export interface Asked {
  readonly seed: number;
  /** The number of the first call. */
  readonly from: number;
  readonly calls: number;
  readonly concurrency: number;
}
export interface Told {
  /** Outcomes of each method: `ok`, the code of a LimiterError, or the name of another error. */
  readonly outcomes: Readonly<Record<string, Readonly<Record<string, number>>>>;
  /** The first call against a law. */
  readonly fault?: string;
}

const operations = new Operations(JSON.parse(JSON.stringify(openApiDocument())) as OpenApi);
const ids = new LiveIds();

export default {
  async fetch(request: Request, env: { readonly LIMITER: Service<typeof Limiter> }): Promise<Response> {
    const asked: Asked = await request.json();
    const outcomes: Record<string, Record<string, number>> = {};
    let next = asked.from;
    let fault: string | undefined;
    const worker = async () => {
      while (next < asked.from + asked.calls && fault === undefined) {
        const number = next;
        next += 1;
        const random = seededRandom(asked.seed + number);
        const call = drawnCall(random, operations, ids);
        const { outcome, wrong } = await made(random, env.LIMITER, call);
        const ofMethod = (outcomes[call.isMethod ? call.method : "none"] ??= {});
        ofMethod[outcome] = (ofMethod[outcome] ?? 0) + 1;
        if (wrong !== undefined) fault ??= `call ${number}: ${wrong}: ${printed(call)}`;
      }
    };
    await Promise.all(Array.from({ length: asked.concurrency }, worker));
    return Response.json({ outcomes, ...(fault !== undefined && { fault }) } satisfies Told);
  },
};

async function made(
  random: () => number,
  limiter: Service<typeof Limiter>,
  call: DrawnCall,
): Promise<{ outcome: string; wrong?: string | undefined }> {
  const methods = limiter as unknown as Record<string, (...args: readonly unknown[]) => Promise<unknown>>;
  try {
    const answer = await methods[call.method]?.(...call.args);
    const wrong = faultInAnswer(call, answer);
    keepIds(answer);
    if (wrong !== undefined) return { outcome: "ok", wrong: `${wrong}: ${JSON.stringify(answer)}` };
    return { outcome: "ok", wrong: isGrant(answer) ? await misuse(random, answer) : undefined };
  } catch (error) {
    const wrong = faultInError(call, error);
    const { name, message, code } = error as Error & { readonly code?: unknown };
    return {
      outcome: typeof code === "string" ? code : name,
      wrong: wrong && `${wrong}: ${name}: ${message.slice(0, 500)}`,
    };
  }
}

function keepIds(answer: unknown): void {
  const { lease, hold } = (answer ?? {}) as {
    readonly lease?: { id: string };
    readonly hold?: { id: string };
  };
  ids.add(lease?.id);
  ids.add(hold?.id);
}

function printed({ method, args, foreign }: DrawnCall): string {
  let text: string;
  try {
    text = JSON.stringify(args, (_, value: unknown) => (typeof value === "bigint" ? `${value}n` : value));
  } catch (error) {
    text = String(error);
  }
  const planting = foreign === undefined ? "" : ` with a ${foreign} in it`;
  return `${method}(${text.slice(1, -1).slice(0, 2_000)})${planting}`;
}
