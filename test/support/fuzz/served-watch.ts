/** What the served process shows of itself besides its answers: what it prints, whether it lives, and its memory. */
import { spawnSync } from "node:child_process";
import type { Serving } from "../../../scripts/workerd.ts";

const MIB = 2 ** 20;
/** The runtime keeps what may be of use again, so a process grows at first. One that leaks goes on to grow. */
const MAX_GROWTH = 3;
const MAX_GROWTH_BYTES = 256 * MIB;
const MAX_PRINTED = 1_000_000;

/** What the runtime itself says of clients that break off, break RFC 6455, ask for CONNECT, or drop a grant. */
const EXPECTED = [
  /Uncaught exception: .*WebSocket protocol error/,
  /Uncaught exception: .*Handler does not export a connect\(\) function/,
  /^Received a connect event but we lack a handler/,
  /^An RPC stub was not disposed properly/,
];

export class Watch {
  #printed = "";
  readonly #bytes: number[] = [];
  #serving: Serving | undefined;

  /** Is given what the process prints. */
  readonly hear = (text: string): void => {
    if (this.#printed.length < MAX_PRINTED) this.#printed += text;
  };

  start(serving: Serving): void {
    this.#serving = serving;
  }

  /** Notes how large the process is now. */
  weigh(): void {
    const pid = String(this.#serving?.process.pid ?? 0);
    const { stdout } = spawnSync("ps", ["-o", "rss=", "-p", pid], { encoding: "utf8" });
    this.#bytes.push(Number(stdout.trim()) * 1_024);
  }

  /** The memory of the process after the first tenth of the run, and in the end. */
  weighed(): { readonly early: string; readonly end: string } {
    return { early: mebibytes(this.#early()), end: mebibytes(this.#end()) };
  }

  /** What is wrong; `undefined`: nothing. */
  fault(): string | undefined {
    if (this.#serving?.process.exitCode !== null || this.#serving.process.signalCode !== null)
      return `the process has ended: ${this.#printed.slice(-2_000)}`;
    if (this.#end() > MAX_GROWTH * this.#early() + MAX_GROWTH_BYTES)
      return `memory grew without a bound: ${JSON.stringify(this.weighed())}`;
    const stray = this.#printed
      .split("\n")
      // What follows the last one has not been printed whole.
      .slice(0, -1)
      .find((line) => line.trim() !== "" && !EXPECTED.some((expected) => expected.test(line)));
    return stray === undefined ? undefined : `the log has: ${stray.slice(0, 2_000)}`;
  }

  #early(): number {
    return this.#bytes[Math.floor(this.#bytes.length / 10)] ?? 0;
  }

  #end(): number {
    return this.#bytes.at(-1) ?? 0;
  }
}

function mebibytes(bytes: number): string {
  return `${Math.round(bytes / MIB)} MiB`;
}
