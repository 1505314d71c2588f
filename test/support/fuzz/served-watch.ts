/** The served process besides its answers: its output, its life, and its memory. */
import { spawnSync } from "node:child_process";
import type { Serving } from "../../../scripts/workerd.ts";

const MIB = 2 ** 20;
/** The runtime keeps reusable memory, so a process grows at first. One that leaks continues to grow. */
const MAX_GROWTH = 3;
const MAX_GROWTH_BYTES = 256 * MIB;
const MAX_PRINTED = 1_000_000;

/** The runtime's own output about clients that break off, break RFC 6455, send CONNECT, or drop a grant. */
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

  /** Gets the process's output. */
  readonly hear = (text: string): void => {
    if (this.#printed.length < MAX_PRINTED) this.#printed += text;
  };

  start(serving: Serving): void {
    this.#serving = serving;
  }

  /** Records the process's size. */
  weigh(): void {
    const pid = String(this.#serving?.process.pid ?? 0);
    const { stdout } = spawnSync("ps", ["-o", "rss=", "-p", pid], { encoding: "utf8" });
    this.#bytes.push(Number(stdout.trim()) * 1_024);
  }

  /** The memory of the process after the first tenth of the run, and in the end. */
  weighed(): { readonly early: string; readonly end: string } {
    return { early: mebibytes(this.#early()), end: mebibytes(this.#end()) };
  }

  /** The fault, if any. */
  fault(): string | undefined {
    if (this.#serving?.process.exitCode !== null || this.#serving.process.signalCode !== null)
      return `the process has ended: ${this.#printed.slice(-2_000)}`;
    if (this.#end() > MAX_GROWTH * this.#early() + MAX_GROWTH_BYTES)
      return `memory grew without a bound: ${JSON.stringify(this.weighed())}`;
    const stray = this.#printed
      .split("\n")
      // The text after the last one is incomplete.
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
