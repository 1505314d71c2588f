import type { End } from "./end.ts";

/**
 * The same response, which calls `end` once when its body has been read to its end, was cancelled, or has failed. Without
 * a body it calls `end` at once. A response that switches protocols has ended too: what comes after it is no body.
 */
export function untilEnded(response: Response, end: (how: End) => void): Response {
  if (response.body === null || response.status === 101) {
    end("whole");
    return response;
  }
  const reader = response.body.getReader();
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (!done) return controller.enqueue(value);
          end("whole");
          controller.close();
        } catch (error) {
          end("torn");
          throw error;
        }
      },
      async cancel(reason) {
        end("torn");
        await reader.cancel(reason);
      },
    },
    // Nothing is read before it is asked for, as without this stream.
    { highWaterMark: 0 },
  );
  return new Response(body, response);
}
