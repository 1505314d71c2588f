/** Typical mistakes in the rules between a region and its pool. The laws have to find each of them. */
import type { PoolAnswer, PoolCall } from "../../durable-objects/pool/protocol.ts";
import { updateShare } from "../../durable-objects/pool/share-algorithm.ts";
import type { Breakage } from "./pools-schedule.ts";

/** By name: pieces of the script's text, and their replacements. */
const SCRIPTS: Readonly<Record<string, readonly (readonly [string, string])[]>> = {
  "units are debited when they are set apart, and what is left is credited": [
    [
      "nowMs, cost, book.held.all)",
      "nowMs, cost, book.rule.isLeased and book.held.all or book.held.all - book.held.regional)",
    ],
    [
      "local function addTo(own, costs, untilMs)",
      `local function addTo(own, costs, untilMs)
        for index, book in ipairs(books) do
          book.state = book.rule.algorithm.debit(book.rule, book.state, nowMs, costs[index])
        end`,
    ],
    [
      "book.rule.algorithm.debit(book.rule, book.state, nowMs, told.delta)",
      "book.rule.algorithm.credit(book.rule, book.state, nowMs, told.held - told.delta - told.kept)",
    ],
    [
      "if units > 0 then book.state = book.rule.algorithm.debit(book.terms, book.state, hold.atMs, units) end",
      `if units > 0 and not isRegional(hold.id) then
        book.state = book.rule.algorithm.debit(book.terms, book.state, hold.atMs, units)
      end`,
    ],
  ],
  "units that expired are free again": [
    [
      "if units > 0 then book.state = book.rule.algorithm.debit(book.terms, book.state, hold.atMs, units) end",
      "",
    ],
  ],
  "what a region has seen is not looked at": [
    ["if not seen or", "if seen or not seen or"],
    ["if call.seen and isOlder(call.seen)", "if false"],
  ],
  "writes that a region has seen are not looked at": [["if call.seen and isOlder(call.seen)", "if false"]],
  "what a region used is counted twice": [["nowMs, told.delta)", "nowMs, 2 * told.delta)"]],
  "what a region used is not counted": [["nowMs, told.delta)", "nowMs, 0)"]],
  "what a region keeps is forgotten": [["      kept[book.name] = told.kept\n    end", "    end"]],
  "a message that was overtaken counts": [["holding.turn <= tonumber(record.turn)", "false"]],
  "turns are stored to 14 digits": [["turn = text(holding.turn)", "turn = holding.turn"]],
  "idle slots of before a crash are free at once": [
    ["isOther and left[book.name] and math.max(0, left[book.name] - told.kept) or nil", "nil"],
  ],
  "slots that expired are kept": [["local lacking = isOver", "local lacking = false"]],
  "a hold is let go sooner than was said": [
    ["math.max(nowMs + lifetime.heldMs, own.atMs)", "nowMs + lifetime.heldMs / 8"],
  ],
};

/** Settings for rare mistakes: each is found in one of 120 histories or fewer. */
const STEERED: Readonly<Record<string, Breakage>> = {
  "turns are stored to 14 digits": { firstSeed: 1_705 },
  "idle slots of before a crash are free at once": {
    // A message has to be late for an object that was just lost.
    faults: ["crash"],
    faultShare: 0.8,
    policies: ["slots"],
    firstSeed: 50_545,
  },
  "slots that expired are kept": { policies: ["slots", "scarce"], firstSeed: 31 },
  "what a region used is not counted": { firstSeed: 10 },
  "a message that was overtaken counts": { firstSeed: 30 },
};

/** @throws Error when the script no longer has such a text */
export function brokenScript(name: string): Breakage {
  const script = (whole: string) =>
    (SCRIPTS[name] ?? []).reduce((text, [rule, instead]) => {
      if (!text.includes(rule)) throw new Error(`the script has no ${JSON.stringify(rule)}`);
      return text.replaceAll(rule, instead);
    }, whole);
  return { script, ...STEERED[name] };
}

export const BROKEN_SCRIPTS = Object.keys(SCRIPTS);

export const BROKEN_REGIONS: Readonly<Record<string, Breakage>> = {
  "isolates and leases are given longer than the pool keeps units apart": {
    policies: ["slots", "scarce"],
    after: (region) => {
      const keyState = region.open();
      if (keyState.endsByMs > region.nowMs) keyState.endsByMs = Infinity;
    },
  },
  "units are spent after their end": {
    firstSeed: 60,
    after: (region) => {
      const keyState = region.open();
      for (const ruleState of keyState.ruleStates)
        if (ruleState.account.state !== undefined) updateShare(keyState, ruleState, { endsAtMs: Infinity });
    },
  },
  "the cost comes in twice": {
    answer: (answer, { cost, op }) =>
      granting(answer, (granted) => ({
        ...granted,
        units: granted.units.map((units, index) => units + (op === "limit" ? (cost[index] ?? 0) : 0)),
      })),
  },
  "slots go back while they are leased": {
    call: (call) => holding(call, (units) => Math.max(0, units - 1)),
  },
};

function granting(
  answer: PoolAnswer,
  change: (granted: NonNullable<PoolAnswer["granted"]>) => NonNullable<PoolAnswer["granted"]>,
): PoolAnswer {
  return answer.granted === undefined ? answer : { ...answer, granted: change(answer.granted) };
}

function holding(call: PoolCall, change: (units: number) => number): PoolCall {
  if (call.holding === undefined) return call;
  return { ...call, holding: { ...call.holding, kept: call.holding.kept.map(change) } };
}
