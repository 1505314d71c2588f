import type { Time } from "../../core/clock.ts";
import type { UnsupportedProtocol } from "../../core/protocol/answers.ts";
import type { BatchedAnswer, BatchedCall } from "../../core/protocol/messages.ts";
import type { Full } from "../../core/protocol/problems.ts";

/** What a request brings with it. None of it is used by another request. */
export interface Sending<Answer = BatchedAnswer> {
  readonly time: Time;
  readonly deadlineMs: number;
  /** Sends calls in one message, on a stub of its own; `undefined`: there is no answer. It does not reject. */
  readonly send: (
    calls: readonly QueuedCall<Answer>[],
  ) => Promise<readonly Answer[] | UnsupportedProtocol | Full | undefined>;
  readonly inBackground: (work: Promise<unknown>) => void;
}

/** What came of a call; `undefined`: no answer. `leftMs` is what is left of its deadline: 0 when that is over. */
export interface QueuedAnswer<Answer = BatchedAnswer> {
  readonly answer: Answer | UnsupportedProtocol | Full | undefined;
  readonly leftMs: number;
}

/** A call that waits to be sent, or for its answer. */
export class QueuedCall<Answer = BatchedAnswer> {
  readonly call: BatchedCall;
  /** From then on nobody waits for it. */
  readonly untilMs: number;
  state: "queued" | "sent" | "ended" = "queued";
  /** Settles when the message has been answered in which it was sent, if the sender still lives. */
  step: Promise<void> | undefined;
  answer: QueuedAnswer<Answer>["answer"];
  #text: string | undefined;

  constructor(call: BatchedCall, untilMs: number) {
    this.call = call;
    this.untilMs = untilMs;
  }

  get text(): string {
    this.#text ??= JSON.stringify(this.call);
    return this.#text;
  }

  /** At least as many as the bytes of the text in UTF-8. */
  get length(): number {
    return ASCII.test(this.text) ? this.text.length : 3 * this.text.length;
  }

  /** Ends the call with its answer. */
  end(answer: QueuedAnswer<Answer>["answer"]): void {
    if (this.state === "ended") return;
    this.state = "ended";
    this.answer = answer;
  }
}

/** How much goes in one message at most. */
export interface MessageBounds {
  readonly mostCalls: number;
  /** Of all calls as JSON text, where a character that is not ASCII counts three times: as many bytes as it may take. */
  readonly mostLength: number;
}

/** JSON text has no control characters. */
const ASCII = /^[ -~]*$/;
