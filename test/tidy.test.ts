import { readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, normalize, relative } from "node:path";
import { describe, expect, test } from "vitest";
import { algorithms } from "../core/policies/algorithms.ts";
import { specimens } from "./support/algorithms.ts";

const ROOT = join(import.meta.dirname, "..");

/** What may stand at the top: what the layout names, and beside it only what earns its place. */
const TOP = [
  ".ci",
  ".git",
  ".github",
  ".gitignore",
  ".npmrc",
  ".oxfmtrc.json",
  ".oxlintrc.json",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "LICENSE",
  "README.md",
  "SECURITY.md",
  "bench",
  "client",
  "core",
  "dashboard",
  "docs",
  "drop-ins",
  "durable-objects",
  "examples",
  "middleware",
  "package",
  "package-lock.json",
  "package.json",
  "scripts",
  "template",
  "test",
  "testing",
  "tsconfig.json",
  "vitest.config.ts",
  "worker",
  "wrangler.toml",
];
/** What working leaves behind; git ignores it. */
const LEFTOVERS = ["node_modules", "dist", ".weir", ".wrangler", ".dev.vars"];

/** So many imports of the worker may reach into the object: the deployment's policies, and the class itself. */
const MAX_WORKER_TO_OBJECT = 6;

function filesIn(folder: string): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name !== "dashboard-files.js")
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)));
}
const read = (file: string) => readFileSync(join(ROOT, file), "utf8");
const isWithin = (path: string, prefix: string) => path === prefix || path.startsWith(`${prefix}/`);

interface Import {
  /** A file below the root, or a package. */
  readonly target: string;
  readonly isType: boolean;
}

function importsOf(file: string): Import[] {
  const found = read(file).matchAll(
    /^(?:import|export) (type )?(?:[^;"]*? from )?"([^"]+)";|\bimport\("([^"]+)"\)/gm,
  );
  return [...found].map(([, type, specifier, loaded]) => {
    const given = specifier ?? loaded ?? "";
    const target = given.startsWith(".") ? normalize(join(dirname(file), given)) : given;
    return { target, isType: type !== undefined };
  });
}

/** What each place may import: the table in docs/architecture.md. */
const MAY_IMPORT = new Map(
  [...read("docs/architecture.md").matchAll(/^\| `([^`]+[^/`])` \|(.*)\|$/gm)].map(
    ([, place = "", row = ""]) => {
      const named = [...row.matchAll(/`([^`]+)`/g)].map(([, each = ""]) => each);
      const isApart = isWithin(place, "core") || place === "dashboard";
      return [place, isApart ? named : ["core", ...named]];
    },
  ),
);

/** All that is loaded with a file, without what is imported for its types alone. */
function loadedWith(file: string, seen = new Set<string>()): ReadonlySet<string> {
  for (const { target, isType } of importsOf(file)) {
    if (isType || seen.has(target)) continue;
    seen.add(target);
    if (sources.includes(target)) loadedWith(target, seen);
  }
  return seen;
}

/** The first circle of a graph; empty: there is none. */
function circleIn(arrows: ReadonlyMap<string, ReadonlySet<string>>): readonly string[] {
  const done = new Set<string>();
  const walk = (from: string, path: readonly string[]): readonly string[] => {
    if (path.includes(from)) return [...path.slice(path.indexOf(from)), from];
    if (done.has(from)) return [];
    for (const to of arrows.get(from) ?? []) {
      const circle = walk(to, [...path, from]);
      if (circle.length > 0) return circle;
    }
    done.add(from);
    return [];
  };
  for (const from of arrows.keys()) {
    const circle = walk(from, []);
    if (circle.length > 0) return circle;
  }
  return [];
}
const SOURCES = [
  "core",
  "client",
  "durable-objects",
  "worker",
  "middleware",
  "drop-ins",
  "testing",
  "package",
  "dashboard",
];
const sources = SOURCES.flatMap(filesIn).filter((file) => !/\.(css|json)$/.test(file));
const everything = [...sources, ...["test", "scripts", "bench", "examples"].flatMap(filesIn)].filter((file) =>
  /\.(tsx?|mjs)$/.test(file),
);

/** Named, but not a source: the configuration at the top, and what `weir types` writes into a project. */
const OUTSIDE = ["vitest.config.ts", "weir-policies.d.ts"];
const PAGES = ["README.md", "CHANGELOG.md", "wrangler.toml"];

test("nothing stands at the top but what the layout names", () => {
  const found = readdirSync(ROOT).filter((name) => !LEFTOVERS.includes(name));
  expect(found.filter((name) => !TOP.includes(name))).toEqual([]);
});

describe.each(sources)("%s", (file) => {
  const text = read(file);
  const code = text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "");

  test("reads no clock and no randomness; clock.ts does", () => {
    if (file.endsWith("clock.ts")) return;
    expect(code).not.toMatch(/Date\.now|new Date\b|performance\.now|Math\.random|randomUUID|getRandomValues/);
  });

  test("imports what its place may import", () => {
    const places = [...MAY_IMPORT.keys()].filter((place) => isWithin(file, place));
    const place = places.toSorted((a, b) => b.length - a.length)[0] ?? "a place that the table does not have";
    const allowed = [...(MAY_IMPORT.get(place) ?? []), dirname(file)];
    const strays = importsOf(file).filter(({ target }) => !allowed.some((each) => isWithin(target, each)));
    expect(strays.map(({ target }) => target)).toEqual([]);
  });
});

describe("the house", () => {
  const between = (files: readonly string[], placeOf: (path: string) => string) => {
    const graph = new Map<string, Set<string>>();
    for (const file of files)
      for (const { target } of importsOf(file)) {
        const [from, to] = [placeOf(file), placeOf(target)];
        if (from !== to && files.includes(target)) graph.set(from, (graph.get(from) ?? new Set()).add(to));
      }
    return graph;
  };

  test("no files import each other in a circle, and no folders", () => {
    expect(circleIn(between(everything, (file) => file))).toEqual([]);
    expect(circleIn(between(sources, dirname))).toEqual([]);
  });

  test("the worker hardly knows the object", () => {
    const imports = sources
      .filter((file) => isWithin(file, "worker"))
      .flatMap((file) => importsOf(file))
      .filter(({ target }) => isWithin(target, "durable-objects"));
    expect(imports.length).toBeLessThanOrEqual(MAX_WORKER_TO_OBJECT);
  });

  test.each(
    sources.filter((file) =>
      /^(client|middleware|drop-ins|core\/(protocol|accounts|reservations))\//.test(file),
    ),
  )("%s loads no validator, no framework and nothing of a platform", (file) => {
    const packages = [...loadedWith(file)].filter((target) => !sources.includes(target));
    expect(packages).toEqual([]);
  });

  test("every room has its sentence in docs/architecture.md, and tests are where the code is", () => {
    const rooms = new Set(sources.map(dirname));
    const page = read("docs/architecture.md");
    expect([...rooms].filter((room) => !page.includes(`\`${room}/\``))).toEqual([]);
    const ofRooms = filesIn("test").filter((file) =>
      /^test\/(core|client|durable-objects|worker|middleware|drop-ins|testing)\//.test(file),
    );
    expect(ofRooms.filter((file) => !rooms.has(dirname(file).slice("test/".length)))).toEqual([]);
  });
});

/** A folder with more files is two folders. Subfolders do not count. */
const MAX_FILES_IN_FOLDER = 12;
/** A file with fewer lines belongs into the one that imports it. */
const MIN_LINES = 60;
const PRODUCT = /^(core|client|durable-objects|worker)\//;
/** Small files with one importer that stay by themselves, and why. */
const SMALL: Readonly<Record<string, string>> = {
  "client/objects/candidate-calls.ts": "is tested without the client",
  "core/accounts/joint-wait.ts": "only denials of rare rules go through it",
  "core/algorithms/gcra.ts": "an algorithm is one file, with its test",
  "durable-objects/pool/redis/lua/gcra.ts": "an algorithm is one part of the script",
  "durable-objects/pool/redis/lua/concurrency.ts": "an algorithm is one part of the script",
  "durable-objects/memory-namespace.ts": "objects without the platform, of which storage knows nothing",
  "worker/auth/claim-proofs.ts": "the only user of a package for hashes",
  "worker/bindings/call-log.ts": "is tested without the platform",
  "worker/http/stop-header.ts": "is read by scripts that run in Node",
  "worker/index.ts": "the entry",
};

describe("product files", () => {
  const files = sources.filter((file) => PRODUCT.test(file) && file.endsWith(".ts"));

  test(`stand ${MAX_FILES_IN_FOLDER} to a folder at most`, () => {
    const folders = Map.groupBy(files, dirname);
    const full = [...folders].filter(([, members]) => members.length > MAX_FILES_IN_FOLDER);
    expect(full.map(([folder]) => folder)).toEqual([]);
  });

  test(`have over ${MIN_LINES} lines or several importers, or say why not`, () => {
    const importers = new Map<string, number>();
    for (const target of sources.flatMap((file) => [
      ...new Set(importsOf(file).map((imported) => imported.target)),
    ]))
      importers.set(target, (importers.get(target) ?? 0) + 1);
    const small = files.filter(
      (file) => read(file).split("\n").length <= MIN_LINES && (importers.get(file) ?? 0) <= 1,
    );
    expect(small.filter((file) => !file.endsWith(".d.ts")).toSorted()).toEqual(Object.keys(SMALL).toSorted());
  });

  test("call bounds MAX_ and MIN_", () => {
    const others = everything.filter((file) => /\b(MOST|LEAST)_[A-Z]/.test(read(file)));
    expect(others.filter((file) => file !== "test/tidy.test.ts")).toEqual([]);
  });
});

describe.each([...everything, ...filesIn("docs"), ...PAGES])("%s", (file) => {
  test("names no file that is not there", () => {
    const named = read(file).matchAll(/(?<![\w./-])((?:[\w-]+\/)*[\w-]+(?:\.[\w-]+)*\.(?:tsx?|mjs))\b/g);
    const lost = [...named].filter(
      ([, name = ""]) =>
        !OUTSIDE.includes(name) && !everything.some((each) => each === name || each.endsWith(`/${name}`)),
    );
    expect(lost.map(([, name]) => name)).toEqual([]);
  });
});

describe.each(everything)("%s", (file) => {
  const lines = read(file).split("\n");

  test("is small enough to read: 400 lines, tests 450", () => {
    expect(lines.length).toBeLessThanOrEqual(file.startsWith("test/") ? 450 : 400);
  });

  test("has nothing left to do, and speaks of no machine", () => {
    if (file === "test/tidy.test.ts") return;
    expect(read(file)).not.toMatch(/\b(TODO|FIXME|XXX|HACK)\b|\.only\(|\/home\/|\/root\/|\/work\//);
  });
});

test("test/README.md lists every module that tests share", () => {
  const page = read("test/README.md");
  const shared = everything.filter((file) => /^test\/(support|simulation)\//.test(file));
  const modules = shared.map((file) => basename(file)).filter((name) => !name.endsWith(".test.ts"));
  expect(modules.filter((name) => !page.includes(`\`${name}\``))).toEqual([]);
  const listed = [...page.matchAll(/`([\w-]+\.(?:ts|mjs))`/g)].map(([, name]) => name ?? "");
  expect(listed.filter((name) => !everything.some((file) => basename(file) === name))).toEqual([]);
});

test("functions are under 60 lines", () => {
  const long = sources.filter((file) => {
    let start: number | undefined;
    return read(file)
      .split("\n")
      .some((line, index) => {
        if (/^( {2})?(export |override |async )*(function|[a-z#]\w*\(.*\{$)/.test(line)) start = index;
        const ends = start !== undefined && /^( {2})?\}/.test(line);
        const isLong = ends && index - (start ?? index) > 60;
        if (ends) start = undefined;
        return isLong;
      });
  });
  expect(long).toEqual([]);
});

test("every algorithm has its registry line, its specimen and its test", () => {
  const files = filesIn("core/algorithms").map((file) => basename(file, ".ts"));
  // The interface, what algorithms share, and what is made of another algorithm.
  const others = [
    "adaptive-limits",
    "algorithm",
    "forecast",
    "calendar",
    "dual-config",
    "penalty",
    "fair",
    "fair-shares",
    "fair-weights",
    "fair-slots",
    "runs",
    "several-windows",
    "slot-shares",
    "standing",
    "stored-shares",
    "window-shares",
    "unit-log",
  ];
  const names = files.filter((name) => !others.includes(name)).toSorted();
  expect([...algorithms.keys()].toSorted()).toEqual(names);
  expect(Object.keys(specimens).toSorted()).toEqual(names);
  const tests = filesIn("test/core/algorithms");
  for (const name of names) expect(tests).toContain(`test/core/algorithms/${name}.test.ts`);
  const inScript = filesIn("durable-objects/pool/redis/lua");
  for (const { name, isPoolable } of algorithms.values())
    expect(inScript.includes(`durable-objects/pool/redis/lua/${name}.ts`)).toBe(isPoolable === true);
});

test("one version of workerd is installed", () => {
  const { packages } = JSON.parse(read("package-lock.json")) as { packages: Record<string, unknown> };
  expect(Object.keys(packages).filter((path) => path.endsWith("node_modules/workerd"))).toEqual([
    "node_modules/workerd",
  ]);
});

test("the lock file names no registry", () => {
  expect(read("package-lock.json")).not.toContain('"resolved"');
});
