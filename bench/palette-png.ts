/** PNG with a palette of 256 colours: pictures of pages need no more, and are a third as large. */
import { crc32, deflateSync, inflateSync } from "node:zlib";

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
const MAX_COLOURS = 256;

/** The same picture with a palette. It takes PNGs of 8 bits with or without alpha, as browsers make them. */
export function withPalette(png: Uint8Array): Buffer {
  const { width, height, pixels } = decoded(Buffer.from(png));
  const colours = commonest(pixels);
  const known = new Map(colours.map((colour, index) => [colour, index]));
  const lines = Buffer.alloc((width + 1) * height);
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1) {
      const colour = pixels[y * width + x] ?? 0;
      const index = known.get(colour) ?? nearest(colours, colour);
      known.set(colour, index);
      lines[y * (width + 1) + 1 + x] = index;
    }
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 3, 0, 0, 0], 8);
  const palette = Buffer.from(colours.flatMap((colour) => [colour >> 16, (colour >> 8) & 255, colour & 255]));
  return Buffer.concat([
    SIGNATURE,
    chunk("IHDR", header),
    chunk("PLTE", palette),
    chunk("IDAT", deflateSync(lines, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

function chunk(type: string, data: Buffer): Buffer {
  const typed = Buffer.concat([Buffer.from(type), data]);
  const frame = Buffer.alloc(8);
  frame.writeUInt32BE(data.length, 0);
  frame.writeUInt32BE(crc32(typed), 4);
  return Buffer.concat([frame.subarray(0, 4), typed, frame.subarray(4)]);
}

function decoded(png: Buffer): { width: number; height: number; pixels: Uint32Array } {
  const data: Buffer[] = [];
  for (let at = SIGNATURE.length; at < png.length;) {
    const length = png.readUInt32BE(at);
    if (png.toString("latin1", at + 4, at + 8) === "IDAT") data.push(png.subarray(at + 8, at + 8 + length));
    at += length + 12;
  }
  const [width, height, type] = [png.readUInt32BE(16), png.readUInt32BE(20), png[25]];
  const size = type === 6 ? 4 : 3;
  const bytes = unfiltered(inflateSync(Buffer.concat(data)), width * size, height, size);
  const at = (index: number) => bytes[index] ?? 0;
  const pixels = Uint32Array.from({ length: width * height }, (_, index) => {
    const first = index * size;
    return (at(first) << 16) | (at(first + 1) << 8) | at(first + 2);
  });
  return { width, height, pixels };
}

/** Each line of a PNG says how its bytes were predicted from those before and above them. */
function unfiltered(lines: Buffer, length: number, height: number, size: number): Uint8Array {
  const bytes = new Uint8Array(length * height);
  for (let y = 0; y < height; y += 1) {
    const filter = lines[y * (length + 1)];
    for (let x = 0; x < length; x += 1) {
      const at = y * length + x;
      const left = x < size ? 0 : (bytes[at - size] ?? 0);
      const above = y === 0 ? 0 : (bytes[at - length] ?? 0);
      const corner = x < size || y === 0 ? 0 : (bytes[at - length - size] ?? 0);
      const guesses = [0, left, above, (left + above) >> 1, paeth(left, above, corner)];
      bytes[at] = (lines[y * (length + 1) + 1 + x] ?? 0) + (guesses[filter ?? 0] ?? 0);
    }
  }
  return bytes;
}

function paeth(left: number, above: number, corner: number): number {
  const guess = left + above - corner;
  const [toLeft, toAbove, toCorner] = [left, above, corner].map((each) => Math.abs(guess - each)) as [
    number,
    number,
    number,
  ];
  if (toLeft <= toAbove && toLeft <= toCorner) return left;
  return toAbove <= toCorner ? above : corner;
}

function commonest(pixels: Uint32Array): number[] {
  const counts = new Map<number, number>();
  for (const colour of pixels) counts.set(colour, (counts.get(colour) ?? 0) + 1);
  const sorted = [...counts].toSorted(([, a], [, b]) => b - a);
  return sorted.slice(0, MAX_COLOURS).map(([colour]) => colour);
}

function nearest(colours: readonly number[], colour: number): number {
  const part = (of: number, shift: number) => (of >> shift) & 255;
  const distance = (other: number) =>
    [16, 8, 0].reduce((sum, shift) => sum + (part(other, shift) - part(colour, shift)) ** 2, 0);
  return colours.reduce(
    (best, each, index) => (distance(each) < distance(colours[best] ?? 0) ? index : best),
    0,
  );
}
