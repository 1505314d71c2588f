/** How an object asks others for keys. */
import { beforeEach, expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import type { HandOver, HandOverResult, ObjectStub } from "../../../core/protocol/object-methods.ts";
import { KeyQuestions } from "../../../durable-objects/moves/key-import.ts";
import { Places } from "../../../durable-objects/moves/key-moves.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";

const POLICY = parsePolicies({
  p: { algorithm: "token-bucket", limit: 5, window: "1s", objects: 1, objectsBefore: 2, deadlineMs: 100 },
}).get("p") as Policy;

let time: VirtualTime;
let questions: KeyQuestions;
let messages: HandOver["handOver"][];
/** What the other object answers. */
let answer: (message: HandOver["handOver"]) => Promise<string>;

beforeEach(() => {
  time = new VirtualTime();
  messages = [];
  const reserve = ({ handOver }: HandOver) => {
    messages.push(handOver);
    return answer(handOver);
  };
  const namespace = {
    idFromName: (name: string) => name,
    getByName: () => ({ reserve }) as unknown as ObjectStub,
  };
  questions = new KeyQuestions({ places: new Places(namespace, "p/shared/0"), time: time.clock({ ms: 0 }) });
});

const ask = (key: string) => questions.ask(POLICY, "p/shared/1", { key, move: 0 });
const say = (keys: readonly HandOverResult[]) => JSON.stringify({ nowMs: 7, layouts: [2], keys });

test("keys that are asked for in one turn go in one message, and each gets its own answer", async () => {
  answer = async ({ keys }) => say(keys.map(({ key }) => (key === "kept" ? "kept" : "nothing")));
  const heard = await Promise.all(["a", "kept", "b"].map(ask));
  expect(heard.map(({ handed }) => handed)).toEqual(["nothing", "kept", "nothing"]);
  expect(messages).toMatchObject([
    { policy: "p", layout: 1, keys: [{ key: "a" }, { key: "kept" }, { key: "b" }] },
  ]);
});

test("what does not fit into one answer is asked for again, and 256 keys fit into one message", async () => {
  answer = async ({ keys }) => say(keys.slice(0, 100).map(() => "nothing"));
  await Promise.all(Array.from({ length: 300 }, (_, key) => ask(`key ${key}`)));
  expect(messages.map(({ keys }) => keys.length)).toEqual([256, 200, 100]);
});

test("an object of before moves is told by its refusal, and one that says nothing of a key is not believed", async () => {
  answer = async () => JSON.stringify({ unsupported: { protocol: 3 } });
  expect(await ask("a")).toMatchObject({ handed: "older" });
  answer = async () => say([]);
  await expect(ask("a")).rejects.toThrow("handed nothing over");
});

test("whoever does not answer within the deadline is not heard any more, and the next question is a new one", async () => {
  let late: (text: string) => void = () => undefined;
  answer = () => new Promise((resolve) => (late = resolve));
  const asked = ask("a").then(
    () => "heard",
    (error: Error) => error.message,
  );
  // Its message leaves at the end of this turn.
  await new Promise((sent) => setTimeout(sent, 0));
  await time.run(101, () => undefined);
  late(say(["nothing"]));
  expect(await asked).toContain("within 100 ms");
  answer = async () => say(["kept"]);
  expect(await ask("a")).toMatchObject({ handed: "kept", nowMs: 7 });
  expect(messages).toHaveLength(2);
});
