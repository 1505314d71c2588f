/** Measures one decision of a sliding log in this process, with 10, 1,000 and 100,000 runs in its window. */
import { slidingLog } from "../core/algorithms/log/sliding-log.ts";
import type { UnitLog } from "../core/algorithms/log/unit-log.ts";

const SIZES = [10, 1_000, 100_000];
const DECISIONS = 400_000;
const ROUNDS = 5;

export function printLogSizes(): void {
  const rows = SIZES.map((size) => {
    const rounds = Array.from({ length: ROUNDS }, () => measure(size));
    const least = (figure: keyof Measured) => Math.min(...rounds.map((round) => round[figure]));
    return [size, least("admittedNs"), least("deniedNs"), least("bytesPerRun").toFixed(1)] as const;
  });
  console.log(`
| runs in the window | admitted, ns | denied, ns | bytes a run |
| --- | --- | --- | --- |
${rows.map((row) => `| ${row.map((figure) => (typeof figure === "number" ? Math.round(figure) : figure)).join(" | ")} |`).join("\n")}

Node ${process.versions.node}; the best of ${ROUNDS} rounds of ${DECISIONS} decisions each.`);
}

interface Measured {
  readonly admittedNs: number;
  readonly deniedNs: number;
  readonly bytesPerRun: number;
}

/** The window stays full: each decision comes one millisecond after the last, and takes the unit that has just left. */
function measure(size: number): Measured {
  const config = { limit: size, windowMs: size, minIntervalMs: 0, countDenied: false };
  let state: UnitLog | undefined;
  let nowMs = 0;
  const admit = () => {
    nowMs += 1;
    const decision = slidingLog.decide(config, state, nowMs, 1, 0);
    if (!decision.allowed) throw new Error("a unit was denied, although one had just left the window");
    ({ state } = decision);
  };
  for (let count = 0; count < 2 * size; count += 1) admit();
  const admittedNs = timed(admit);
  const deniedNs = timed(() => {
    if (slidingLog.decide(config, state, nowMs, 1, 0).allowed)
      throw new Error("a unit was admitted, although the window was full");
  });
  const runs = (state?.end ?? 0) - (state?.first ?? 0);
  return { admittedNs, deniedNs, bytesPerRun: (state?.runs.bytes ?? 0) / runs };
}

function timed(work: () => void): number {
  const startMs = performance.now();
  for (let count = 0; count < DECISIONS; count += 1) work();
  return ((performance.now() - startMs) * 1e6) / DECISIONS;
}

if (import.meta.main) printLogSizes();
