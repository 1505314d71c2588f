/** Before a file that computes and waits for nothing: it gets what the tests beside it leave of the processors. */
import { setPriority } from "node:os";

const BEHIND = 10;

setPriority(BEHIND);
