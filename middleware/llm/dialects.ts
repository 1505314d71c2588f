/** What providers call things: where a request names its bounds, and where an answer has its usage. */
import { describe } from "../../core/violations.ts";
import { type ReportedUsage, tokensIn } from "./usage.ts";

export type Json = Readonly<Record<string, unknown>>;

export interface Dialect {
  /** The end of a request's path, in lower case. */
  readonly path: RegExp;
  /** Fields that bound the output, the first of which is written where a request has none. Empty: there is no output. */
  readonly outputFields: readonly string[];
  /** Makes a stream report its usage, if the request does not say otherwise. */
  readonly prepare?: (body: Json) => Json;
  /** The usage in an answer or an event. `isFinal`: it is that of the whole output. */
  readonly usageIn: (answer: Json) => { readonly usage: Json; readonly isFinal: boolean } | undefined;
  readonly read: (usage: Json) => ReportedUsage;
}

/** How OpenAI's two APIs report usage: cached tokens are a part of the input. */
const readOpenAi =
  (input: string, output: string) =>
  (usage: Json): ReportedUsage => {
    const all = tokensIn(usage[input]);
    const details = objectIn(usage[`${input}_details`]);
    const cached = Math.min(all ?? 0, tokensIn(details?.["cached_tokens"]) ?? 0);
    return defined({
      input: all === undefined ? undefined : all - cached,
      cachedInput: cached,
      output: tokensIn(usage[output]),
    });
  };

const readCompletions = readOpenAi("prompt_tokens", "completion_tokens");
const usageField = (answer: Json) => whole(answer["usage"]);

const CHAT: Dialect = {
  path: /\/chat\/completions$/,
  outputFields: ["max_completion_tokens", "max_tokens"],
  prepare: withUsage,
  usageIn: usageField,
  read: readCompletions,
};

const COMPLETIONS: Dialect = {
  ...CHAT,
  path: /\/completions$/,
  outputFields: ["max_tokens"],
};

const EMBEDDINGS: Dialect = {
  path: /\/embeddings$/,
  outputFields: [],
  usageIn: usageField,
  read: (usage) => ({ ...readCompletions(usage), output: 0 }),
};

const RESPONSES: Dialect = {
  path: /\/responses$/,
  outputFields: ["max_output_tokens"],
  usageIn(answer) {
    const response = objectIn(answer["response"]) ?? answer;
    const found = whole(answer["usage"]) ?? whole(response["usage"]);
    return found && { ...found, isFinal: !isUnfinished(response) };
  },
  read: readOpenAi("input_tokens", "output_tokens"),
};

/** Whether a response is still being made, so that its usage is not known. */
export function isUnfinished({ status }: Json): boolean {
  return status === "queued" || status === "in_progress";
}

const MESSAGES: Dialect = {
  path: /\/messages$/,
  outputFields: ["max_tokens"],
  usageIn(answer) {
    // The first event has the input, and of the output only its beginning.
    const begun = objectIn(objectIn(answer["message"])?.["usage"]);
    return begun === undefined ? whole(answer["usage"]) : { usage: begun, isFinal: false };
  },
  read: (usage) =>
    defined({
      input: tokensIn(usage["input_tokens"]),
      cachedInput: tokensIn(usage["cache_read_input_tokens"]),
      cacheWrite: tokensIn(usage["cache_creation_input_tokens"]),
      output: tokensIn(usage["output_tokens"]),
    }),
};

const NAME = "[\\w.-]+";
/** The ends of paths to which a POST uses no tokens, or, for images and batches, none that are counted. */
const WITHOUT_TOKENS = [
  "files",
  `uploads(/${NAME}/(parts|complete|cancel))?`,
  "images/(generations|edits|variations)",
  `batches(/${NAME}/cancel)?`,
  "moderations",
  "messages/count_tokens",
  "responses/input_tokens",
  `responses/${NAME}/cancel`,
  `threads(/${NAME}/messages)?`,
  `conversations(/${NAME}/items)?`,
];
/** A whole path, without what servers read in different ways, such as `;` or `%2F`: it may be another one there. */
const PATH_WITHOUT_TOKENS = new RegExp(`^(/+${NAME})*/+(${WITHOUT_TOKENS.join("|")})/*$`, "i");

/** How a POST to a path says what it uses; `"without-tokens"`: it uses none; `undefined`: unknown. */
export function dialectOf(path: string): Dialect | "without-tokens" | undefined {
  if (PATH_WITHOUT_TOKENS.test(path)) return "without-tokens";
  // Servers ignore parameters, the case of letters and empty segments, or refuse them: then nothing is charged.
  const plain = path
    .toLowerCase()
    .replace(/;[^/]*/g, "")
    .replace(/\/+/g, "/")
    .replace(/\/$/, "");
  return [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES].find((each) => each.path.test(plain));
}

/** A request whose output is bounded. */
interface BoundedRequest {
  readonly model: string;
  /** The most tokens of output. */
  readonly output: number;
  /** What is sent. */
  readonly body: Json;
}

const MAX_TOKENS = 1_000_000_000;
/** How many answers a request asks for, each within its bound. */
const ANSWER_FIELDS = ["n", "best_of"];

/** Reads what a request may use, and bounds its output by `maxOutputTokens` if it has no bound. A text is a problem. */
export function boundedRequest(
  dialect: Dialect,
  text: string,
  maxOutputTokens: number,
): BoundedRequest | string {
  const body = parsed(text);
  if (body === undefined) return "the body must be a JSON object";
  const { model } = body;
  if (typeof model !== "string" || model === "") return `model is ${describe(model)}: must be a text`;
  const isGiven = (field: string) => (body[field] ?? null) !== null;
  const given = dialect.outputFields.filter(isGiven);
  const answerFields = ANSWER_FIELDS.filter(isGiven);
  for (const field of [...given, ...answerFields]) {
    const value = tokensIn(body[field]) ?? 0;
    if (value < 1 || value > MAX_TOKENS)
      return `${field} is ${describe(body[field])}: must be an integer from 1 to ${MAX_TOKENS}`;
  }
  const answers = Math.max(1, ...answerFields.map((field) => Number(body[field])));
  const [first] = dialect.outputFields;
  const added = given.length === 0 && first !== undefined ? { [first]: maxOutputTokens } : {};
  const most = Math.max(0, ...given.map((field) => Number(body[field])), ...Object.values(added));
  const bounded = { ...body, ...added };
  return { model, output: promptsIn(body) * answers * most, body: dialect.prepare?.(bounded) ?? bounded };
}

/** How many prompts a legacy completion has, each of which is answered. A list of numbers is one prompt, in tokens. */
function promptsIn({ prompt }: Json): number {
  const isList = Array.isArray(prompt) && !prompt.every((each) => typeof each === "number");
  return isList ? prompt.length : 1;
}

/** The JSON object in a text; `undefined`: there is none. */
export function parsed(text: string): Json | undefined {
  try {
    return objectIn(JSON.parse(text));
  } catch {
    return undefined;
  }
}

export function objectIn(value: unknown): Json | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : undefined;
}

function whole(value: unknown): { readonly usage: Json; readonly isFinal: true } | undefined {
  const usage = objectIn(value);
  return usage === undefined ? undefined : { usage, isFinal: true };
}

function withUsage(body: Json): Json {
  const options = objectIn(body["stream_options"]);
  if (body["stream"] !== true || options?.["include_usage"] !== undefined) return body;
  return { ...body, stream_options: { ...options, include_usage: true } };
}

function defined(usage: { readonly [Field in keyof ReportedUsage]: number | undefined }): ReportedUsage {
  return Object.fromEntries(Object.entries(usage).filter(([, tokens]) => tokens !== undefined));
}
