/** Draws lines over time as SVG, in panels one below the other. */

/** A line: its points are a second and a value each. */
export interface Line {
  readonly points: readonly (readonly [atS: number, value: number])[];
  readonly colour: string;
  readonly width: number;
}

export interface Panel {
  readonly title: string;
  /** The highest value that is drawn; what is above is cut. */
  readonly most: number;
  /** In the order in which they are drawn. */
  readonly lines: readonly Line[];
}

export const COLOURS = { first: "#0b6bcb", second: "#d4570a", mark: "#9aa0a6", text: "#30343a" };

const [LEFT, WIDTH, HEIGHT, GAP, TOP] = [48, 640, 120, 36, 44];

/** A picture with a title, a legend (each text so far from the left, in its colour), and panels. */
export function picture(
  title: string,
  legend: readonly (readonly [text: string, fromLeft: number, colour: string])[],
  timesS: readonly number[],
  panels: readonly Panel[],
): string {
  const drawn = panels.map((panel, index) => drawnPanel(panel, timesS, TOP + index * (HEIGHT + GAP) + 16));
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${LEFT + WIDTH + 28} ${TOP + panels.length * (HEIGHT + GAP)}"`,
    `  font-family="system-ui, sans-serif" font-size="11" fill="${COLOURS.text}">`,
    `<rect width="100%" height="100%" fill="#ffffff"/>`,
    `<text x="${LEFT}" y="18" font-size="14" font-weight="600">${title}</text>`,
    ...legend.map(
      ([text, fromLeft, colour]) => `<text x="${LEFT + fromLeft}" y="36" fill="${colour}">${text}</text>`,
    ),
    ...drawn.flat(),
    "</svg>",
  ].join("\n")}\n`;
}

function drawnPanel({ title, most, lines }: Panel, timesS: readonly number[], topPx: number): string[] {
  const endS = timesS.at(-1) ?? 1;
  const x = (atS: number) => Math.round(LEFT + (atS / endS) * WIDTH);
  const y = (value: number) => Math.round(topPx + HEIGHT - (Math.min(value, most) / most) * HEIGHT);
  const grid = [0, most / 2, most].map(
    (value) =>
      `<path d="M${LEFT} ${y(value)}H${LEFT + WIDTH}" stroke="#e3e5e8"/>` +
      `<text x="${LEFT - 6}" y="${y(value) + 4}" text-anchor="end">${value}</text>`,
  );
  const times = timesS.map(
    (atS) => `<text x="${x(atS)}" y="${topPx + HEIGHT + 13}" text-anchor="middle">${atS} s</text>`,
  );
  const drawn = lines.map(
    ({ points, colour, width }) =>
      `<polyline fill="none" stroke="${colour}" stroke-width="${width}" points="${points
        .map(([atS, value]) => `${x(atS)},${y(value)}`)
        .join(" ")}"/>`,
  );
  return [`<text x="${LEFT}" y="${topPx - 4}">${title}</text>`, ...grid, ...times, ...drawn];
}
