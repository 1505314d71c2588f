/** Before a file that computes and waits for nothing: the tests beside it, which mostly wait, go first. */
import { setPriority } from "node:os";

/** It gets a third of what each of them may have. Much less would make it hang on a busy machine. */
const BEHIND = 5;

setPriority(BEHIND);
