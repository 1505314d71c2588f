/** Draws what each algorithm admits of the same traffic, as SVG. */
import { admissionsOf, END_MS, LANES, STEP_MS, trafficMs } from "../test/support/same-traffic.ts";

const [LEFT, WIDTH, HEIGHT, TOP, RIGHT] = [210, 600, 34, 30, 90];
const COLOURS = { goOn: "#0b6bcb", denied: "#f0c4a4", line: "#c9ced3", text: "#30343a" };
const STEP_PX = WIDTH / (END_MS / STEP_MS);
/** Steps with more calls are cut off: the first burst has 40. */
const MAX = 12;

/** The picture: the traffic, and below it a lane for each algorithm. */
export function picture(): string {
  const calls = Array.from({ length: END_MS / STEP_MS }, () => 0);
  for (const atMs of trafficMs())
    calls[Math.floor(atMs / STEP_MS)] = (calls[Math.floor(atMs / STEP_MS)] ?? 0) + 1;
  const lanes = LANES.map(([label, fields], index) => {
    const { goOn, denied } = admissionsOf(fields);
    const admitted = goOn.reduce((sum, each) => sum + each, 0);
    return lane(label, `${admitted} admitted`, index + 1, goOn, denied);
  });
  const height = TOP + (LANES.length + 1) * HEIGHT + 24;
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${LEFT + WIDTH + RIGHT} ${height}"`,
    `  font-family="system-ui, sans-serif" font-size="11" fill="${COLOURS.text}">`,
    `<rect width="100%" height="100%" fill="#ffffff"/>`,
    `<text x="10" y="18" font-size="13" font-weight="600">The same calls, by algorithm</text>`,
    `<text x="${LEFT + 40}" y="18" fill="${COLOURS.goOn}">calls that pass</text>`,
    `<text x="${LEFT + 150}" y="18" fill="#c77d45">denied calls</text>`,
    ...lane("the calls", `${trafficMs().length} calls`, 0, [], calls),
    ...lanes.flat(),
    ...seconds(height),
    "</svg>",
  ].join("\n")}\n`;
}

function lane(
  label: string,
  sum: string,
  place: number,
  goOn: readonly number[],
  denied: readonly number[],
): string[] {
  const baseline = TOP + (place + 1) * HEIGHT;
  const bars = denied.flatMap((refused, step) => {
    const admitted = Math.min(goOn[step] ?? 0, MAX);
    return [
      ...bar(step, baseline, admitted, COLOURS.goOn),
      ...bar(step, baseline - heightOf(admitted), Math.min(refused, MAX - admitted), COLOURS.denied),
    ];
  });
  return [
    `<line x1="${LEFT}" x2="${LEFT + WIDTH}" y1="${baseline}" y2="${baseline}" stroke="${COLOURS.line}"/>`,
    `<text x="10" y="${baseline - 6}">${label}</text>`,
    `<text x="${LEFT + WIDTH + 8}" y="${baseline - 6}">${sum}</text>`,
    ...bars,
  ];
}

function bar(step: number, bottom: number, calls: number, colour: string): string[] {
  if (calls === 0) return [];
  const [x, height] = [LEFT + step * STEP_PX, heightOf(calls)];
  return [
    `<rect x="${x}" y="${(bottom - height).toFixed(1)}" width="${STEP_PX - 1}" height="${height.toFixed(1)}" fill="${colour}"/>`,
  ];
}

function heightOf(calls: number): number {
  return (calls / MAX) * (HEIGHT - 6);
}

function seconds(height: number): string[] {
  return Array.from({ length: END_MS / 4_000 + 1 }, (_, index) => {
    const x = LEFT + (index * 4_000 * STEP_PX) / STEP_MS;
    return `<text x="${x}" y="${height - 8}" text-anchor="middle">${index * 4} s</text>`;
  });
}
