/** Keeps the catalog in a file: npm run policies -- pull | diff | push, with TOKEN in the environment. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { CatalogDocument } from "../core/catalog/calls.ts";
import { meant } from "../core/violations.ts";
import { calledIn, commandOf, readFlags, readLimiter, requireNotTaken, runCommand } from "./call.ts";

const COMMAND = commandOf("policies");
const USAGE = `Usage: TOKEN=weir_... ${COMMAND} pull|diff|push URL [--file catalog.json]

  pull    writes all run-time changes into the file
  diff    shows what a push would change; the exit code is 1 when it would change anything
  push    applies the file: all of it or, if anything is refused, nothing
  URL     the limiter's address, such as https://weir.example.workers.dev
  TOKEN   a token with the scope admin
  --file  default: catalog.json in the current folder`;
const ACTIONS = ["pull", "diff", "push"];

interface Remote {
  readonly document: CatalogDocument;
  readonly etag: string;
}

async function main(): Promise<number> {
  const { values, positionals } = readFlags({
    allowPositionals: true,
    options: { file: { type: "string" }, help: { type: "boolean", short: "h", default: false } },
  });
  if (values.help) {
    console.log(USAGE);
    return 0;
  }
  requireNotTaken(["file"], `${COMMAND} diff URL`);
  const [action = "", ...address] = positionals;
  if (!ACTIONS.includes(action)) {
    const is = action === "" ? "the action is missing" : `${action} is not an action`;
    throw new Error(`${is}: there are ${ACTIONS.join(", ")}${meant(action, ACTIONS)}\n\n${USAGE}`);
  }
  const limiter = readLimiter(address, USAGE);
  const file = join(calledIn(), values.file ?? "catalog.json");
  const remote = await read(limiter);
  if (action === "pull") {
    writeFileSync(file, `${JSON.stringify(remote.document, undefined, 2)}\n`);
    console.log(`${file}: ${countsOf(remote.document)}`);
    return 0;
  }
  const document = fromFile(file);
  const lines = catalogLines(remote.document, document);
  console.log(lines.length === 0 ? "nothing differs" : lines.join("\n"));
  if (action === "diff") return lines.length === 0 ? 0 : 1;
  if (lines.length > 0) await write(limiter, document, remote.etag);
  return 0;
}

type LimiterAddress = ReturnType<typeof readLimiter>;

async function read(limiter: LimiterAddress): Promise<Remote> {
  const response = await ask(limiter);
  return { document: (await response.json()) as CatalogDocument, etag: response.headers.get("etag") ?? "*" };
}

async function write(limiter: LimiterAddress, document: CatalogDocument, etag: string): Promise<void> {
  const headers = { "content-type": "application/json", "if-match": etag };
  await ask(limiter, { method: "PUT", headers, body: JSON.stringify(document) });
  console.log(`${limiter.url} has the change; it is in force everywhere within 10 s`);
}

async function ask({ url, token }: LimiterAddress, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("authorization", `Bearer ${token}`);
  // fetch says "fetch failed", and its cause says why.
  const response = await fetch(`${url}/v1/catalog`, { ...init, headers }).catch((error: Error) => {
    throw new Error(
      `${url} does not answer: ${String((error.cause as Error | undefined)?.message ?? error)}`,
    );
  });
  if (response.ok) return response;
  const text = await response.text();
  if (response.status === 412)
    throw new Error("the catalog was changed in the meantime: check the diff again");
  throw new Error(`${url} answers ${response.status}: ${reasonIn(text)}`);
}

function reasonIn(text: string): string {
  try {
    const { detail = "it is no limiter", errors = [] } = JSON.parse(text) as {
      detail?: string;
      errors?: readonly { detail: string }[];
    };
    // The detail begins with the first error, but that of earlier limiters.
    const further = errors.map((each) => each.detail).filter((each) => !detail.startsWith(each));
    return [detail, ...further].join("\n  ");
  } catch {
    return "it is no limiter";
  }
}

function fromFile(file: string): CatalogDocument {
  if (!existsSync(file)) throw new Error(`${file} does not exist: make it with ${COMMAND} pull URL`);
  try {
    return JSON.parse(readFileSync(file, "utf8")) as CatalogDocument;
  } catch (error) {
    throw new Error(`${file} is not JSON: ${String(error)}`, { cause: error });
  }
}

function countsOf({ policies, overrides, tokens }: CatalogDocument): string {
  const patterns = Object.values(overrides).reduce((sum, each) => sum + Object.keys(each).length, 0);
  return `${Object.keys(policies).length} policies, ${patterns} overrides, ${Object.keys(tokens).length} tokens`;
}

await runCommand(main, 2);

type Tables = Readonly<Record<string, unknown>>;

/** The changes between two catalog documents: a line for each, the old value before the new one. */
function catalogLines(before: CatalogDocument, after: Partial<CatalogDocument>): string[] {
  return [
    ...changedIn("policy", before.policies, after.policies),
    ...[...namesOf(before.policies)].flatMap((name) =>
      removedPlans(name, before.policies[name], after.policies?.[name]),
    ),
    ...[...namesOf(before.overrides, after.overrides)].flatMap((policy) =>
      changedIn(`override ${policy}`, before.overrides[policy], after.overrides?.[policy]),
    ),
    ...changedIn("candidate", before.candidates, after.candidates),
    ...changedIn("token", before.tokens, after.tokens),
  ];
}

function removedPlans(policy: string, before?: Tables, after?: Tables): string[] {
  if (after === undefined) return [];
  const kept = namesOf(after["plans"] as Tables);
  const removed = [...namesOf(before?.["plans"] as Tables)].filter((plan) => !kept.has(plan));
  return removed.map((plan) => `! policy ${policy}: calls that name the plan ${plan} are refused`);
}

function changedIn(what: string, before: Tables = {}, after: Tables = {}): string[] {
  return [...namesOf(before, after)].flatMap((name) => {
    const [old, made] = [textOf(before[name]), textOf(after[name])];
    if (old === made) return [];
    if (made === undefined) return [`- ${what} ${name}: ${old}`];
    return old === undefined ? [`+ ${what} ${name}: ${made}`] : [`~ ${what} ${name}: ${old} -> ${made}`];
  });
}

function namesOf(before: Tables = {}, after: Tables = {}): Set<string> {
  return new Set([...Object.keys(before), ...Object.keys(after)].toSorted());
}

/** Sorts the fields, because their order means nothing. */
function textOf(value: unknown): string | undefined {
  if (value === undefined) return undefined;
  return JSON.stringify(value, (_, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : each,
  );
}
