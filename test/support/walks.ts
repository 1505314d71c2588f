/** The files that a call runs through: a build in which each function of the product records its file. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import ts from "typescript5";
import { buildChanged, type ChangedBuild } from "./planted.ts";

const FOLDERS = ["core", "client", "durable-objects", "worker"];
/** The path at which a build with marks lists the files that have run since the last request. */
export const WALK_PATH = "/walk";

/** Builds the limiter with a mark in each function. The copy's `package/client.ts` has them too. */
export function buildMarked(): ChangedBuild {
  return buildChanged((folder) => {
    for (const file of FOLDERS.flatMap((name) => filesIn(folder, name)))
      writeFileSync(join(folder, file), withMarks(file, readFileSync(join(folder, file), "utf8")));
    const handler = join(folder, "worker/http/fast-path.ts");
    const from = "    return (\n      answerLimit(";
    const answer = `    if (request.url.endsWith("${WALK_PATH}")) return Response.json(globalThis.walk.splice(0));\n`;
    const text = readFileSync(handler, "utf8");
    if (!text.includes(from)) throw new Error("worker/http/fast-path.ts answers in another way now");
    writeFileSync(handler, `globalThis.walk = [];\n${text.replace(from, answer + from)}`);
  });
}

function filesIn(folder: string, name: string): string[] {
  return readdirSync(join(folder, name), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(".ts") && !entry.name.endsWith(".d.ts"))
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)));
}

/** The text with a mark at the beginning of each function. */
function withMarks(file: string, text: string): string {
  const inserted: [at: number, text: string][] = [];
  const mark = `globalThis.walk?.push(${JSON.stringify(file)})`;
  const visit = (node: ts.Node): void => {
    const body = ts.isFunctionLike(node) && "body" in node ? (node.body as ts.Node | undefined) : undefined;
    if (body !== undefined && ts.isBlock(body)) inserted.push([body.getStart() + 1, `${mark};`]);
    else if (body !== undefined && ts.isArrowFunction(node))
      inserted.push([body.getStart(), `(${mark}, `], [body.getEnd(), ")"]);
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true));
  let marked = text;
  for (const [at, added] of inserted.toSorted(([one], [other]) => other - one))
    marked = marked.slice(0, at) + added + marked.slice(at);
  return marked;
}
