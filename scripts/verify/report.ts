/** The result of one check. `untested`: it needs something missing, which `says` names. */
export interface Finding {
  readonly name: string;
  readonly verdict: "holds" | "BROKEN" | "untested" | "measured" | "skipped";
  readonly says: readonly string[];
}

export function untested(name: string, ...says: readonly string[]): Finding {
  return { name, verdict: "untested", says };
}

/** The findings as text, and the exit code: 1 when a guarantee is broken, 2 when none could be tested. */
export function report(findings: readonly Finding[]): { readonly text: string; readonly exitCode: number } {
  const count = (wanted: Finding["verdict"]) => findings.filter(({ verdict }) => verdict === wanted).length;
  const [broken, held] = [count("BROKEN"), count("holds")];
  const sum = `${held} held, ${broken} broken, ${count("untested")} untested`;
  return { text: [linesOf(findings), "", sum].join("\n"), exitCode: broken > 0 ? 1 : held > 0 ? 0 : 2 };
}

export function linesOf(findings: readonly Finding[]): string {
  const lines = findings.map(({ name, verdict, says }) =>
    [`${verdict.padEnd(9)} ${name}`, ...says.map((line) => `          ${line}`)].join("\n"),
  );
  return lines.join("\n");
}

/** Times in milliseconds, as text. */
export function percentiles(tookMs: readonly number[]): string {
  if (tookMs.length === 0) return "no answer";
  const inOrder = tookMs.toSorted((a, b) => a - b);
  const at = (share: number) => (inOrder[Math.ceil(share * inOrder.length) - 1] ?? 0).toFixed(1);
  return `p50 ${at(0.5)} ms, p95 ${at(0.95)} ms, p99 ${at(0.99)} ms`;
}
