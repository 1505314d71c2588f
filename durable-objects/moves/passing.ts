/** How a call is passed on to the object where its key is, or is to be. */
import { MOVE_PROTOCOL } from "../../core/protocol/moves.ts";
import type { LimiterMethods } from "../../core/protocol/object-methods.ts";
import type { Kept } from "./arrivals.ts";
import { ELSEWHERE } from "./key-moves.ts";
import type { Places } from "./places.ts";

/** A call of one of the object's methods. */
export interface Passing {
  readonly policy: string;
  readonly key: string;
  readonly method: keyof LimiterMethods;
  readonly args: readonly unknown[];
  readonly mayBeAt: readonly string[];
}

/**
 * Makes a call of another object, and returns what its method returns. An object that keeps the key because it knows
 * nothing of moves is called as a client calls it.
 *
 * @returns `ELSEWHERE`: the call was not made
 */
export async function passOn(places: Places, { by, isOlder }: Kept, passing: Passing): Promise<unknown> {
  const object = places.objectAt(by);
  if (isOlder) {
    const call = object[passing.method] as (...args: readonly unknown[]) => Promise<unknown>;
    return await call(...passing.args);
  }
  const passed = await object.reserve({ protocol: MOVE_PROTOCOL, passedOn: passing });
  return typeof passed === "string" || "isElsewhere" in passed ? ELSEWHERE : passed.returned;
}

/** The same for a call that waits or opens a socket: it is a request, which ends with its caller. */
export async function passRequest(
  places: Places,
  { by, isOlder }: Kept,
  { url, method, headers, signal }: Request,
  message: object,
  mayBeAt: readonly string[],
): Promise<Response> {
  const text = JSON.stringify(isOlder ? message : { ...message, mayBeAt });
  const address = new URL(url);
  const isInAddress = address.searchParams.has("call");
  if (isInAddress) address.searchParams.set("call", text);
  const upgrade = headers.get("upgrade");
  return await places.objectAt(by).fetch(address.href, {
    method,
    signal,
    ...(upgrade !== null && { headers: { upgrade } }),
    ...(!isInAddress && { body: text }),
  });
}
