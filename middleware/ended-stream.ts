/** A stream that says when it has ended. */
import type { End } from "./verdict.ts";

/**
 * The same chunks. `end` is called once, when the stream was read, was cancelled or failed. `passing` sees each chunk
 * before the reader does; what it throws is the stream's error.
 */
export function endedStream<Chunk>(
  stream: ReadableStream<Chunk>,
  end: (how: End) => void,
  passing?: (chunk: Chunk) => void,
): ReadableStream<Chunk> {
  const reader = stream.getReader();
  let isOver = false;
  const endOnce = (how: End) => {
    if (isOver) return;
    isOver = true;
    end(how);
  };
  return new ReadableStream<Chunk>(
    {
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (!done) {
            passing?.(value);
            return controller.enqueue(value);
          }
          endOnce("complete");
          controller.close();
        } catch (error) {
          endOnce("aborted");
          await reader.cancel(error).catch(() => undefined);
          throw error;
        }
      },
      async cancel(reason) {
        endOnce("aborted");
        await reader.cancel(reason);
      },
    },
    // Read nothing ahead, as without this stream.
    { highWaterMark: 0 },
  );
}
