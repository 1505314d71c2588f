/** Requests that break the rules of HTTP itself. After any of them, the next one has to be answered. */
import { pick, whole } from "../random.ts";

type Random = () => number;

/** @param lines the request line and the headers, without those on the body's length */
export function oddBytes(random: Random, lines: readonly string[], body = Buffer.from("{}")): Buffer {
  const [request = "", ...headers] = lines;
  const told = headers.concat(oddFraming(random, body.length));
  const line = random() < 0.5 ? request : oddRequestLine(random, request);
  const head = [line, ...told].join(random() < 0.1 ? "\n" : "\r\n");
  const bytes = Buffer.concat([Buffer.from(`${head}\r\n\r\n`, "latin1"), body]);
  const kind = random();
  if (kind < 0.1) return bytes.subarray(0, whole(random, bytes.length));
  if (kind < 0.2) return Buffer.concat([bytes, bytes]);
  if (kind < 0.25) return Buffer.from(Array.from({ length: whole(random, 300) }, () => whole(random, 256)));
  return bytes;
}

function oddFraming(random: Random, length: number): readonly string[] {
  return pick(random, [
    [`Content-Length: ${length + 1 + whole(random, 100)}`],
    [`Content-Length: ${whole(random, length + 1)}`],
    [`Content-Length: ${length}`, `Content-Length: ${length + 1}`],
    [`Content-Length: ${length}`, "Transfer-Encoding: chunked"],
    ["Content-Length: -1"],
    ["Content-Length: 1e3"],
    ["Content-Length: 99999999999999999999"],
    ["Content-Length: 0x10"],
    ["Content-Length:"],
    ["Transfer-Encoding: chunked"],
    ["Transfer-Encoding: gzip, chunked"],
    ["Transfer-Encoding: identity"],
    [`Content-Length: ${length}`, "Expect: 100-continue"],
    [`Content-Length: ${length}`, "No colon"],
    [`Content-Length: ${length}`, "Space : before"],
    [`Content-Length: ${length}`, " folded: line"],
    [`Content-Length: ${length}`, "Nul: a\u0000b"],
    [`Content-Length: ${length}`, ": no name"],
    [`Content-Length: ${length}`, `X-Huge: ${"x".repeat(70_000)}`],
    [`Content-Length: ${length}`, "Host: another.test"],
    [`Content-Length: ${length}`, "Connection: close"],
    [`Content-Length: ${length}`, "Connection: authorization, content-type"],
  ]);
}

function oddRequestLine(random: Random, line: string): string {
  const [method = "", target = ""] = line.split(" ");
  return pick(random, [
    `${method} ${target} HTTP/1.0`,
    `${method} ${target} HTTP/9.9`,
    `${method} ${target}`,
    `${method}  ${target} HTTP/1.1`,
    `${method} ${target}\u0000 HTTP/1.1`,
    `${method} ${target}\u0007 HTTP/1.1`,
    `${method} ${target} \u00e9 HTTP/1.1`,
    `${method} ${target}\u00ff HTTP/1.1`,
    `${method} http://weir.test${target} HTTP/1.1`,
    `${method} https://weir.test:99999${target} HTTP/1.1`,
    `${method} * HTTP/1.1`,
    `${method} ${target.slice(1)} HTTP/1.1`,
    `CONNECT weir.test:443 HTTP/1.1`,
    `${method.toLowerCase()} ${target} HTTP/1.1`,
    `NONSENSE ${target} HTTP/1.1`,
    `${method} /${"a".repeat(70_000)} HTTP/1.1`,
    "",
    "PRI * HTTP/2.0",
    "\u0016\u0003\u0001\u0002\u0000\u0001\u0000",
  ]);
}
