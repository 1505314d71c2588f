/** How an isolate sees, while a call of its own waits at an object, that another policy is in force for the key. */
import type { Follow } from "../../client/caller.ts";
import type { Time } from "../../core/clock.ts";
import { later } from "../../core/policies/in-force.ts";
import type { Policies } from "../../core/policies/policy.ts";
import type { CatalogReader } from "./catalog-reader.ts";

/**
 * How often it looks, in milliseconds. What the catalog says is asked for every 5 s and seen at the next look, so an
 * object hears of a change within some 9 s.
 */
export const LOOK_MS = 2_000;

/** Looks at the catalog as long as somebody waits. */
export function followingBy(
  catalog: Pick<CatalogReader, "freshen">,
  policies: Pick<Policies, "get">,
  time: Time,
): Follow {
  return ({ name, inForce }, key, tell) => {
    let told = inForce;
    let isOver = false;
    let cancel = () => {};
    const look = async () => {
      await catalog.freshen();
      const named = policies.get(name);
      const now = named?.overrides?.find(key, time.nowMs()) ?? named;
      if (isOver) return;
      if (now !== undefined && later(told, now.inForce) !== told) {
        told = now.inForce;
        tell(now);
      }
      again();
    };
    const again = () => (cancel = time.after(LOOK_MS, () => void look()));
    again();
    return () => {
      isOver = true;
      cancel();
    };
  };
}
