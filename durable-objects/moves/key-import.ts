import type { Layout, Policy } from "../../core/policies/policy.ts";
import type { UnsupportedProtocol } from "../../core/protocol/answers.ts";
import { layoutsOf, namesBy, objectName, objectNames } from "../../core/protocol/names.ts";
import {
  type GivenKey,
  type HandedOver,
  type HandOverResult,
  MAX_MOVED,
  MOVE_PROTOCOL,
  type MovedKey,
  type PresumedByRule,
  type RequestedKey,
} from "../../core/protocol/object-methods.ts";
import type { Move } from "../storage/moves.ts";
import { type MovesHost, type PresumedUnits, storeRows, writeRecord } from "./moved-rows.ts";

export interface KeptKey {
  readonly by: string;
  /** That object's version does not know moves. */
  readonly isOlder: boolean;
}

interface Asking {
  readonly name: string;
  /** Another object still had rows sent to it: it now answers whether they have come. */
  readonly chased?: { readonly by: string; readonly given: GivenKey };
  /** It gave the key to an object where it has not come. */
  readonly lost?: GivenKey;
}

/** The rows from an object, and how far this object's clock was ahead when they came. */
interface Copy {
  readonly from: string;
  readonly moved: MovedKey;
  readonly laterMs: number;
}

type Handed = Partial<{ moved: MovedKey; given: GivenKey; presumed: PresumedByRule }>;

/** A policy's layouts have four places for a key, and each gets a few questions at most. */
const MAX_QUESTIONS = 24;

/** Fetches keys from the objects that had them. Other calls for a key wait for the first one's request. */
export class KeyImport {
  readonly #host: MovesHost;
  readonly #underWay = new Map<string, Promise<KeptKey | undefined>>();
  readonly #questions: KeyQuestions;

  constructor(host: MovesHost) {
    this.#host = host;
    this.#questions = new KeyQuestions(host);
  }

  isUnderWay(key: string): boolean {
    return this.#underWay.has(key);
  }

  /** Brings a key here; `undefined`: it is here. Rejects without an answer within the policy's deadline. */
  take(policy: Policy, key: string): Promise<KeptKey | undefined> {
    const known = this.#underWay.get(key);
    if (known !== undefined) return known;
    const arriving = this.#take(policy, key).finally(() => this.#underWay.delete(key));
    this.#underWay.set(key, arriving);
    return arriving;
  }

  async #take(policy: Policy, key: string): Promise<KeptKey | undefined> {
    const { storage, places } = this.#host;
    const own = storage.moves.read(key);
    const move = isAway(own) ? own.move : 0;
    const presumed = new Map<string, PresumedByRule>();
    const copies: Copy[] = [];
    const names = objectNames(policy, key).filter((name) => !places.isHere(name));
    const toAsk: Asking[] = names.map((name) => ({ name }));
    let left = MAX_QUESTIONS;
    for (let next = toAsk.shift(); next !== undefined; next = toAsk.shift()) {
      left -= 1;
      if (left < 0) throw new Error(`nobody is found to have the key ${JSON.stringify(key)}`);
      const { name, lost, chased } = next;
      const asked = { key, move, ...(lost && { lost }) };
      const { handed, nowMs, layouts } = await this.#questions.ask(policy, name, asked);
      // Another version may know more places.
      for (const other of namesBy(layouts, policy, key)) {
        if (names.includes(other) || places.isHere(other)) continue;
        names.push(other);
        toAsk.push({ name: other });
      }
      if (handed === "older") return { by: name, isOlder: true };
      if (handed === "kept") return { by: name, isOlder: false };
      if (handed === "busy") throw new Error(`the key ${JSON.stringify(key)} is on its way elsewhere`);
      const { moved, given, presumed: units }: Handed = handed === "nothing" ? {} : handed;
      if (moved !== undefined) copies.push({ from: name, moved, laterMs: this.#host.nowMs() - nowMs });
      if (units !== undefined) presumed.set(name, units);
      // The receiver answers that the key has not come, or has nothing later.
      if (chased !== undefined && (given?.move ?? 0) < chased.given.move)
        toAsk.unshift({ name: chased.by, lost: chased.given });
      else if (given !== undefined) {
        checkNamed(names, key, given.to);
        toAsk.unshift({ name: given.to, chased: { by: name, given } });
      }
    }
    // Without a confirmed arrival, a copy may be older than the key's later state.
    const [last] = copies.toSorted((one, other) => other.moved.move - one.moved.move);
    if (last === undefined || last.moved.move <= move)
      return this.#begin(policy, key, sumOf(presumed), names);
    this.#store(policy, key, last, sumOf(presumed));
    for (const copy of copies) this.#tell(policy, key, copy);
    return undefined;
  }

  /** No object has the key. It begins here, unless memory knows more or rows given away never arrived. */
  #begin(policy: Policy, key: string, presumed: PresumedUnits, names: readonly string[]): undefined {
    const { storage, cache, residents, onWritten } = this.#host;
    const own = storage.moves.read(key);
    const nowMs = this.#host.nowMs();
    if (isAway(own)) {
      checkNamed(names, key, own.other);
      cache.forget(key);
      storage.atomically(() => {
        writeRecord(storage, policy, key, storage.read(key)?.rules, presumed, own.dueMs);
        storage.moves.write(key, { ...own, other: null });
      });
      onWritten(own.dueMs, nowMs);
    } else if (
      cache.known(key) === undefined &&
      writeRecord(storage, policy, key, undefined, presumed, nowMs)
    )
      // The alarm finds out when the key is untouched.
      onWritten(nowMs, nowMs);
    residents.add(key);
    return undefined;
  }

  #store(policy: Policy, key: string, { moved, laterMs }: Copy, presumed: PresumedUnits): void {
    const { storage, cache, residents, nowMs, onWritten } = this.#host;
    cache.forget(key);
    storeRows(storage, policy, key, moved, laterMs, presumed);
    residents.add(key);
    onWritten(moved.wholeAtMs, nowMs());
  }

  /** Sent after the key is stored durably. If it is lost, the old rows are deleted when untouched. */
  #tell({ name }: Policy, key: string, { from, moved }: Copy): void {
    const taken = { policy: name, keys: [{ key, move: moved.move }] };
    const failed = (error: unknown) =>
      console.warn(`an object was not told that a key has arrived: ${String(error)}`);
    this.#host.places.objectAt(from).reserve({ protocol: MOVE_PROTOCOL, taken }).catch(failed);
  }
}

function isAway(move: Move | undefined): move is Move & { readonly other: string } {
  return move !== undefined && move.other !== null;
}

/** @throws Error when a key is in a place that the policy does not name */
function checkNamed(names: readonly string[], key: string, to: string): void {
  if (names.includes(to)) return;
  throw new Error(
    `the key ${JSON.stringify(key)} was given to ${to}: objectsBefore must say that layout too`,
  );
}

function sumOf(presumed: ReadonlyMap<string, PresumedByRule>): Map<string, number> {
  const sums = new Map<string, number>();
  for (const units of presumed.values())
    for (const [rule, count] of Object.entries(units)) sums.set(rule, (sums.get(rule) ?? 0) + count);
  return sums;
}

interface OwnerReport {
  readonly handed: HandOverResult | "older";
  readonly nowMs: number;
  readonly layouts: readonly Layout[];
}

type Question = PromiseWithResolvers<OwnerReport> & { readonly asked: RequestedKey };

/** Asks other objects for keys. The questions of one turn go to each object in one message. */
export class KeyQuestions {
  readonly #host: Pick<MovesHost, "places" | "time">;
  readonly #questions = new Map<string, Question[]>();

  constructor(host: Pick<MovesHost, "places" | "time">) {
    this.#host = host;
  }

  ask(policy: Policy, name: string, asked: RequestedKey): Promise<OwnerReport> {
    const question: Question = { asked, ...Promise.withResolvers<OwnerReport>() };
    const waiting = this.#questions.get(name);
    if (waiting !== undefined) waiting.push(question);
    else {
      this.#questions.set(name, [question]);
      // The calls of one batch run in one turn: their keys go together.
      void Promise.resolve().then(() => this.#askAll(policy, name));
    }
    return question.promise;
  }

  async #askAll(policy: Policy, name: string): Promise<void> {
    const questions = this.#questions.get(name) ?? [];
    this.#questions.delete(name);
    while (questions.length > 0) {
      const some = questions.slice(0, MAX_MOVED);
      try {
        const heard = await this.#inTime(policy, this.#handOver(policy, name, some));
        for (const [index, each] of heard.entries()) some[index]?.resolve(each);
        questions.splice(0, heard.length);
      } catch (error) {
        for (const { reject } of questions.splice(0)) reject(error);
      }
    }
  }

  async #handOver(policy: Policy, name: string, questions: readonly Question[]): Promise<OwnerReport[]> {
    const [first] = questions;
    const isOwn = (objects: Policy["objects"]) =>
      this.#host.places.isHere(objectName({ name: policy.name, objects }, first?.asked.key ?? ""));
    const layout = layoutsOf(policy).find(isOwn) ?? policy.objects;
    const keys = questions.map(({ asked }) => asked);
    const handOver = { policy: policy.name, layout, keys };
    const text = await this.#host.places.objectAt(name).reserve({ protocol: MOVE_PROTOCOL, handOver });
    const answer = JSON.parse(text) as HandedOver | UnsupportedProtocol;
    if ("unsupported" in answer) return questions.map(() => ({ handed: "older", nowMs: 0, layouts: [] }));
    if (answer.keys.length === 0) throw new Error(`the object ${name} handed nothing over`);
    const { nowMs, layouts: known } = answer;
    return answer.keys.map((handed) => ({ handed, nowMs, layouts: known }));
  }

  /** An answer after the deadline is ignored: others may have learned meanwhile that nothing comes. */
  #inTime<Answer>({ deadlineMs }: Policy, answer: Promise<Answer>): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const cancel = this.#host.time.after(deadlineMs, () =>
        reject(new Error(`an object did not hand keys over within ${deadlineMs} ms`)),
      );
      answer.then(resolve, reject).finally(cancel);
    });
  }
}
