/** The changes by a deployment for keys in use. */
import { plainValuesOf } from "../../core/algorithms/penalty.ts";
import type { Policies, Policy } from "../../core/policies/policy.ts";

/** A line of the report. `BAD` ends in an exit code that is not 0. */
export interface Line {
  readonly verdict: "ok" | "BAD" | "note" | "unknown";
  readonly text: string;
}

export interface Deployed {
  readonly name: string;
  readonly objects: "per-key" | number;
  readonly jurisdiction?: string;
  readonly keyKind: string;
  readonly pool?: string;
  readonly rules: readonly DeployedRule[];
  readonly plans?: Readonly<Record<string, readonly DeployedRule[]>>;
}

type DeployedRule = Readonly<Record<string, unknown>>;

export function changes(deployed: readonly Deployed[], policies: Policies): Line[] {
  const gone = deployed.filter(({ name }) => !policies.has(name)).map(({ name }) => name);
  const added = [...policies.keys()].filter((name) => !deployed.some((each) => each.name === name));
  const changed = deployed.flatMap((before) => {
    const after = policies.get(before.name);
    return after === undefined ? [] : changesOf(before, after);
  });
  const lines: Line[] = [
    ...added.map((name): Line => ({ verdict: "note", text: `${name} is new` })),
    ...gone.map((name): Line => {
      const text = `${name} is gone: calls of it are answered with 404, also those that end its leases and holds`;
      return { verdict: "note", text };
    }),
    ...changed,
  ];
  return lines.length > 0 ? lines : [{ verdict: "ok", text: "no policy changes" }];
}

function changesOf(before: Deployed, after: Policy): Line[] {
  const { name } = after;
  const bad = (text: string): Line => ({ verdict: "BAD", text: `${name}: ${text}` });
  const lines: Line[] = [];
  if (before.jurisdiction !== after.jurisdiction)
    lines.push(
      bad(
        `jurisdiction ${told(before.jurisdiction)} would become ${told(after.jurisdiction)}, where all keys begin anew: ` +
          "write a policy with another name",
      ),
    );
  if (before.objects !== after.objects && after.objectsBefore?.includes(before.objects) !== true)
    lines.push(
      bad(
        `objects ${told(before.objects)} would become ${told(after.objects)}, where keys begin anew: ` +
          `add objectsBefore = ${JSON.stringify(before.objects)}`,
      ),
    );
  if (before.keyKind !== after.keyKind)
    lines.push(bad(`keyKind ${before.keyKind} would become ${after.keyKind}: addresses would be other keys`));
  if (before.pool !== after.pool?.kind)
    lines.push(
      bad(`pool ${told(before.pool)} would become ${told(after.pool?.kind)}, where all keys begin anew`),
    );
  return [...lines, ...ruleChanges(before, after), ...planChanges(before, after)];
}

const noteOf = ({ name }: Policy, text: string): Line => ({ verdict: "note", text: `${name}: ${text}` });

function planChanges({ plans = {} }: Deployed, after: Policy): Line[] {
  const note = (text: string) => noteOf(after, text);
  const known = [...(after.plans?.keys() ?? [])].filter((plan) => plan !== "");
  return [
    ...known.filter((plan) => !Object.hasOwn(plans, plan)).map((plan) => note(`the plan ${plan} is new`)),
    ...Object.entries(plans).flatMap(([plan, rules]) => {
      const next = after.plans?.get(plan);
      if (next === undefined) return [note(`the plan ${plan} is gone: calls that name it are refused (422)`)];
      return ruleChanges({ rules }, next, `plan ${plan}, `);
    }),
  ];
}

/** @param where of a plan's rules, in which plan they are */
function ruleChanges(before: Pick<Deployed, "rules">, after: Policy, where = ""): Line[] {
  const rules = new Map(after.rules.map((rule) => [rule.name, rule]));
  const known = before.rules.map((rule) => String(rule["name"]));
  const note = (text: string) => noteOf(after, text);
  const strays = [
    ...known.filter((name) => !rules.has(name)).map((name) => note(`the rule ${name} is gone`)),
    ...[...rules.keys()]
      .filter((name) => !known.includes(name))
      .map((name) => note(`the rule ${name} is new`)),
  ];
  const changed = before.rules.flatMap((rule) => {
    const next = rules.get(String(rule["name"]));
    if (next === undefined) return [];
    const figures: Readonly<Record<string, unknown>> = {
      ...plainValuesOf(next.config),
      algorithm: next.algorithm.name,
      capacity: next.capacity,
      unit: next.unit,
    };
    const fields = [...new Set([...Object.keys(rule), ...Object.keys(figures)])].filter(
      (field) => field !== "name",
    );
    const differing = fields.filter((field) => told(rule[field]) !== told(figures[field]));
    const said = differing.map((field) => `${field} ${told(rule[field])} becomes ${told(figures[field])}`);
    return said.length === 0 ? [] : [note(`${where}rule ${next.name}: ${said.join(", ")}`)];
  });
  return [...strays, ...changed];
}

function told(value: unknown): string {
  return value === undefined ? "none" : JSON.stringify(value);
}
