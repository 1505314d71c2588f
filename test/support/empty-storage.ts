/** Before each file: no object is in memory, and none has stored anything. A process of its own takes 1.7 s instead. */
import { reset } from "cloudflare:test";
import { beforeAll } from "vitest";

beforeAll(() => reset());
