/** The lines of tables and fields in a TOML file, for errors. */

const WORD = String.raw`(?:[\w-]+|"[^"]*"|'[^']*')`;
const KEY = String.raw`${WORD}(?:\s*\.\s*${WORD})*`;
const HEADER = new RegExp(String.raw`^\s*\[\[?\s*(${KEY})\s*\]`);
const FIELD = new RegExp(String.raw`^\s*(${KEY})\s*=`);

/** The line, from 1 on, of the longest part of a path that has its own; `undefined`: none has. */
export function lineOf(text: string, path: readonly string[]): number | undefined {
  const lines = linesOf(text);
  for (let length = path.length; length > 0; length -= 1) {
    const line = lines.get(JSON.stringify(path.slice(0, length)));
    if (line !== undefined) return line;
  }
  return undefined;
}

function linesOf(text: string): ReadonlyMap<string, number> {
  const lines = new Map<string, number>();
  let table: readonly string[] = [];
  for (const [index, line] of text.split("\n").entries()) {
    const header = HEADER.exec(line)?.[1];
    const field = FIELD.exec(line)?.[1];
    if (header !== undefined) table = partsOf(header);
    const path = header === undefined && field !== undefined ? [...table, ...partsOf(field)] : table;
    // Tables that are only part of a header's name begin there too.
    for (let length = path.length; length > 0; length -= 1) {
      const key = JSON.stringify(path.slice(0, length));
      if (!lines.has(key)) lines.set(key, index + 1);
    }
  }
  return lines;
}

function partsOf(key: string): string[] {
  return [...key.matchAll(new RegExp(WORD, "g"))].map(([word]) => word.replaceAll(/^["']|["']$/g, ""));
}
