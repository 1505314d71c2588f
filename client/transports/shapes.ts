/**
 * What an answer of a limiter has to have before a client believes it. A wrong address, a proxy or a sign-in page may
 * answer too, and a limiter may be of any version: fields that are not known here are left alone.
 */

/** Whether a value is what a field may have. */
type Check = (value: unknown) => boolean;

const isText: Check = (value) => typeof value === "string";
const isFlag: Check = (value) => typeof value === "boolean";
const isNumber: Check = (value) => Number.isFinite(value);
const isMs: Check = (value) => isNumber(value) && (value as number) >= 0;
const isUnits: Check = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const maybe =
  (check: Check): Check =>
  (value) =>
    value === undefined || check(value);
const listOf =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check);
const isTable = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const tableOf =
  (check: Check): Check =>
  (value) =>
    isTable(value) && Object.values(value).every(check);
const having =
  (fields: Readonly<Record<string, Check>>): Check =>
  (value) =>
    isTable(value) && Object.entries(fields).every(([name, check]) => check(value[name]));

const isLease = having({ id: isText, expiresAfterMs: isNumber });
const isDecision = having({
  success: isFlag,
  rules: listOf(having({ name: isText, success: isFlag })),
  lease: maybe(isLease),
  hold: maybe(having({ id: isText, expiresAfterMs: isNumber })),
});

const areRules = listOf(
  having({
    name: isText,
    success: isFlag,
    limit: isNumber,
    remaining: isNumber,
    resetAfterMs: isNumber,
    retryAfterMs: (value) => value === null || isNumber(value),
    reason: isText,
    quotaRemaining: maybe(isNumber),
    delayMs: maybe(isNumber),
  }),
);
const isReserved = having({
  ttlMs: isMs,
  isNew: isFlag,
  units: tableOf(isUnits),
  prospects: maybe(tableOf(having({ resetAfterMs: isMs, gains: maybe(listOf(isNumber)) }))),
});
/** What an object decided, and the units that it granted. */
const isDecided = having({
  rules: (value) => areRules(value) && (value as readonly unknown[]).length > 0,
  source: maybe(isText),
  reserved: maybe(isReserved),
  next: maybe(areRules),
  firmForMs: maybe(isNumber),
});
const isProblem = having({
  status: (value) => Number.isInteger(value),
  code: isText,
  title: isText,
  detail: isText,
  errors: maybe(listOf(having({ pointer: isText, detail: isText }))),
});
const isAnswer: Check = (value) => {
  if (value === null) return true;
  if (!isTable(value)) return false;
  if ("problem" in value) return isProblem(value["problem"]);
  if ("failed" in value) return isText(value["failed"]);
  return "decision" in value ? isDecision(value["decision"]) : isDecided(value);
};
const isDescription = having({
  version: isText,
  onFailure: isText,
  deadlineMs: (value) => isMs(value) && value !== 0,
  objects: (value) => isText(value) || isUnits(value),
  localDecisions: having({ admits: isFlag, denies: isFlag }),
  reservation: having({ leastMs: isMs, mostMs: isMs }),
  denialTtlMs: isMs,
  shadow: isFlag,
  keyKind: isText,
  retryJitter: maybe((value) => having({ share: isMs })(value) || having({ mostMs: isMs })(value)),
  priorities: listOf(isText),
  defaultPriority: isText,
  seen: maybe(tableOf(listOf(isNumber))),
  rules: (value) =>
    listOf(having({ name: isText, unit: isText, capacity: isMs, wholeMs: having({ one: isMs, all: isMs }) }))(
      value,
    ) && (value as readonly unknown[]).length > 0,
});

/** What the answers to the calls have to have, by what they are. */
export const SHAPES = {
  nothing: (value) => value === undefined,
  decision: isDecision,
  decisions: having({ success: isFlag, decisions: listOf(isDecision) }),
  lease: isLease,
  policies: having({ policies: listOf(isTable) }),
  problem: isProblem,
  reservations: having({ answers: listOf(isAnswer), policies: tableOf(isDescription) }),
} as const satisfies Record<string, Check>;

export type Shape = keyof typeof SHAPES;

/**
 * The answer, if it has its shape.
 *
 * @throws Error when it has not: then whoever answered is no limiter
 */
export function shaped<Answer>(shape: Shape, answer: Answer): Answer {
  if (SHAPES[shape](answer)) return answer;
  throw new Error(`the answer is not of this protocol: it is no ${shape}`);
}
