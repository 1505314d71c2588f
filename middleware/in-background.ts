/** Keeps work going after the request has been answered, where the runtime has to be told so. */
export type InBackground = (work: Promise<unknown>) => void;

/** What of a request's context keeps work going. */
interface Waiting {
  waitUntil(work: Promise<unknown>): void;
}

/** @param context whatever a runtime gives beside the request; where it has no `waitUntil`, nothing has to be kept */
export function inBackgroundOf(context: unknown): InBackground {
  if (!canWait(context)) return (work) => void work.catch(() => undefined);
  return (work) => context.waitUntil(work.catch(() => undefined));
}

function canWait(context: unknown): context is Waiting {
  return (
    typeof context === "object" &&
    context !== null &&
    "waitUntil" in context &&
    typeof context.waitUntil === "function"
  );
}
