/**
 * A mock made only of the OpenAPI document: it answers with the document's examples. As with Prism, `Prefer:
 * code=404` requests a status. Of the limiter it knows only `deny` and the need of a token.
 */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

interface Response {
  readonly content?: Readonly<
    Record<string, { readonly examples?: Readonly<Record<string, { readonly value: unknown }>> }>
  >;
}
interface Operation {
  readonly security?: readonly object[];
  readonly responses: Readonly<Record<string, Response>>;
}
interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
}

export async function startMock(document: Document): Promise<{ url: string; stop(): void }> {
  const paths = Object.entries(document.paths).map(([path, methods]) => ({
    pattern: new RegExp(`^${path.replaceAll(/\{\w+\}/g, "[^/]+")}$`),
    methods,
  }));
  const server = createServer(({ method = "GET", url = "/", headers }, response) => {
    const { pathname, searchParams } = new URL(url, "http://mock");
    const operation = paths.find(({ pattern }) => pattern.test(pathname))?.methods[method.toLowerCase()];
    const { responses = {} } = operation ?? {};
    const isStranger = headers.authorization === undefined && operation?.security?.length !== 0;
    const asked = /code=(\d{3})/.exec(String(headers["prefer"]))?.[1] ?? searchParams.get("deny");
    const success = Object.keys(responses).find((status) => status.startsWith("2"));
    const status = isStranger ? "401" : (asked ?? success ?? "404");
    const [told] = Object.entries(responses[status]?.content ?? {});
    const [type = "application/json", { examples = {} } = {}] = told ?? [];
    const [example] = Object.values(examples);
    response.writeHead(Number(status), { "content-type": type });
    response.end(example === undefined ? undefined : JSON.stringify(example.value));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, stop: () => void server.close() };
}
