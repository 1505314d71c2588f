/** Reads OpenMetrics 1.0, and refuses what it does not allow. */

/** Types, helps and units by family, and values by a sample's name with its labels. */
export interface ParsedMetrics {
  readonly types: ReadonlyMap<string, string>;
  readonly help: ReadonlyMap<string, string>;
  readonly units: ReadonlyMap<string, string>;
  readonly samples: ReadonlyMap<string, number>;
}

const SAMPLE =
  /^([a-zA-Z_:][\w:]*(?:\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*\})?) (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)$/;
const SUFFIXES: Readonly<Record<string, RegExp>> = {
  counter: /^_total$/,
  gauge: /^$/,
  histogram: /^_(bucket|count|sum)$/,
};

/** @throws Error that names the line that is not allowed */
export function parsedMetrics(text: string): ParsedMetrics {
  if (!text.endsWith("\n# EOF\n")) throw new Error("the end is missing");
  const [types, help, units] = [
    new Map<string, string>(),
    new Map<string, string>(),
    new Map<string, string>(),
  ];
  const samples = new Map<string, number>();
  const kept: Readonly<Record<string, Map<string, string>>> = { TYPE: types, HELP: help, UNIT: units };
  let family = "";
  for (const line of text.slice(0, -"# EOF\n".length).split("\n").slice(0, -1)) {
    const [, kind = "", name = "", said = ""] = /^# (TYPE|HELP|UNIT) (\S+) (.+)$/.exec(line) ?? [];
    const metadata = kept[kind];
    if (metadata !== undefined) {
      if (metadata.has(name)) throw new Error(`twice: ${line}`);
      // Metadata and samples of a family are in one block.
      if (name !== family && types.has(name)) throw new Error(`apart from its family: ${line}`);
      family = name;
      metadata.set(name, said);
      continue;
    }
    const [, sample = "", value = ""] = SAMPLE.exec(line) ?? [];
    const suffix = sample.split("{", 1)[0]?.slice(family.length) ?? "";
    const isOfFamily = sample.startsWith(family) && SUFFIXES[types.get(family) ?? ""]?.test(suffix) === true;
    if (!isOfFamily || samples.has(sample)) throw new Error(`not allowed here: ${line}`);
    samples.set(sample, Number(value));
  }
  return { types, help, units, samples };
}
