/** A transport of a client whose calls a test answers. */
import type { CallAnswers, CallRequests, LimiterTransport } from "../../client/transports/transport.ts";

export type Answering = {
  readonly [Name in keyof CallRequests]?: (
    request: CallRequests[Name],
    until?: Parameters<LimiterTransport["call"]>[2],
  ) => Promise<CallAnswers[Name]>;
};

export function transportOf(calls: Answering): LimiterTransport {
  return {
    call: (name, request, until) => {
      const call = calls[name];
      return call === undefined ? Promise.reject(new Error(`the test has no ${name}`)) : call(request, until);
    },
  };
}
