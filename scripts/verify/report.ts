/** The result of one check. `untested`: it needs something missing, which `says` names. */
export interface Finding {
  readonly name: string;
  readonly verdict: "holds" | "BROKEN" | "untested" | "measured";
  readonly says: readonly string[];
}

/** The findings as text, and the exit code: 1 when a guarantee is broken, 2 when none could be tested. */
export function report(findings: readonly Finding[]): { readonly text: string; readonly exitCode: number } {
  const lines = findings.map(({ name, verdict, says }) =>
    [`${verdict.padEnd(9)} ${name}`, ...says.map((line) => `          ${line}`)].join("\n"),
  );
  const count = (wanted: Finding["verdict"]) => findings.filter(({ verdict }) => verdict === wanted).length;
  const [broken, held, untested] = [count("BROKEN"), count("holds"), count("untested")];
  const sum = `${held} held, ${broken} broken, ${untested} untested`;
  return { text: [...lines, "", sum].join("\n"), exitCode: broken > 0 ? 1 : held > 0 ? 0 : 2 };
}
