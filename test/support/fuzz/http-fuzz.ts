/** Sends fuzzed requests over many connections at once, and checks every answer against the laws. */
import type { Serving } from "../../../scripts/workerd.ts";
import { seededRandom, whole } from "../random.ts";
import { RawConnection } from "../raw-connection.ts";
import { faultIn, faultInLastWords } from "./http-laws.ts";
import { fuzzedRequest, printed, type FuzzedRequest } from "./http-requests.ts";
import { lastWords, oddFrames } from "./odd-connections.ts";
import type { Operations } from "./openapi-operations.ts";
import { LiveIds } from "./valid-calls.ts";

export interface HttpFuzz {
  readonly serving: Serving;
  readonly operations: Operations;
  readonly seed: number;
  readonly requests: number;
  /** Whether the run has met every required status. */
  readonly isEnough: (answered: Answered) => boolean;
  readonly connections: number;
  /** Called at this interval of requests; throws when something is wrong. */
  readonly every?: { readonly requests: number; readonly check: (made: number) => Promise<void> };
}

/** The number of answers by operation and status. */
export type Answered = ReadonlyMap<string, ReadonlyMap<number, number>>;

/** Rare events come sooner or later, and an unlucky run is no fault of the limiter. */
export const LONGEST = 10;

/** One answer in this many is checked against its schema, which costs more than the rest. */
const SAMPLED = 50;

/** @throws Error that names the seed and the request, at the first answer that breaks a law */
export async function fuzzHttp(fuzz: HttpFuzz): Promise<Answered> {
  const { seed, requests, isEnough, connections, every } = fuzz;
  const run = new Run(fuzz);
  let made = 0;
  let failed: Error | undefined;
  let checking: Promise<void> = Promise.resolve();
  const goesOn = () => made < LONGEST * requests && !isEnough(run.answered);
  const worker = async () => {
    const connection = new RawConnection(run.port);
    try {
      while (failed === undefined && (made < requests || goesOn())) {
        made += 1;
        const number = made;
        if (every !== undefined && number % every.requests === 0) {
          checking = checking.then(() => every.check(number));
          await checking;
        }
        await run.send(connection, number);
      }
    } catch (error) {
      failed ??= error instanceof Error ? error : new Error(String(error));
    }
    connection.close();
  };
  await Promise.all(Array.from({ length: connections }, worker));
  if (failed === undefined) return run.answered;
  throw new Error(`SEED=${seed}: ${failed.message}`, { cause: failed });
}

class Run {
  readonly port: number;
  readonly answered = new Map<string, Map<number, number>>();
  readonly #fuzz: HttpFuzz;
  readonly #ids = new LiveIds();

  constructor(fuzz: HttpFuzz) {
    this.#fuzz = fuzz;
    this.port = Number(new URL(fuzz.serving.url).port);
  }

  async send(connection: RawConnection, number: number): Promise<void> {
    const { seed, operations } = this.#fuzz;
    const random = seededRandom(seed + number);
    const request = fuzzedRequest(random, operations, this.#ids);
    try {
      await this.#exchange(connection, request, random, number);
    } catch (error) {
      const wrong = error instanceof Error ? error.message : String(error);
      throw new Error(`request ${number}: ${wrong}: to ${printed(request)}`, { cause: error });
    }
  }

  async #exchange(
    connection: RawConnection,
    request: FuzzedRequest,
    random: () => number,
    number: number,
  ): Promise<void> {
    switch (request.kind) {
      case "left":
        return await connection.breakOff(request.bytes);
      case "odd": {
        const text = await lastWords(this.port, request.bytes);
        const wrong = faultInLastWords(request.bytes, text);
        if (wrong !== undefined) throw new Error(`${wrong}: ${text.slice(0, 2_000)}`);
        return undefined;
      }
      case "socket": {
        const own = new RawConnection(this.port);
        const { status } = await this.#ask(own, request, number);
        if (status === 101) await own.breakOff(oddFrames(random), { afterMs: whole(random, 20) });
        return own.close();
      }
      case "whole":
        await this.#ask(connection, request, number);
        return undefined;
    }
  }

  async #ask(connection: RawConnection, request: FuzzedRequest, number: number): Promise<{ status: number }> {
    const { operations } = this.#fuzz;
    const answer = await connection.exchange(request.bytes, { isHead: request.method === "HEAD" });
    const wrong = faultIn(operations, request, answer, number % SAMPLED === 0);
    if (wrong !== undefined) throw new Error(`${wrong}: ${JSON.stringify(answer).slice(0, 2_000)}`);
    this.#note(
      operations.at(request.method, request.target.split(/[?#]/)[0] ?? "")?.id ?? "none",
      answer.status,
    );
    if (answer.status === 200) this.#keep(answer.body);
    return answer;
  }

  #note(operation: string, status: number): void {
    const statuses = this.answered.get(operation) ?? new Map<number, number>();
    this.answered.set(operation, statuses.set(status, (statuses.get(status) ?? 0) + 1));
  }

  #keep(body: string): void {
    for (const [, id] of body.matchAll(/"id":"([^"]+)"/g)) this.#ids.add(id);
  }
}
