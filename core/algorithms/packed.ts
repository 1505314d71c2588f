/** A state in the parts that storage keeps. The record is JSON. */
export interface Packed {
  readonly record: unknown;
  readonly segment?: NewSegment;
}

/** A part of a state that does not change any more. */
export interface Segment {
  /** Identifies the state that it is a part of: after a pause a key begins a new one. */
  readonly log: number;
  /** Orders the segments of one state. */
  readonly from: number;
  readonly entries: ArrayLike<number>;
}

/**
 * A segment to be written, and which stored ones may go then: those of another `log`, and those that end too early.
 */
export interface NewSegment extends Segment {
  /** The latest instant in it. */
  readonly toMs: number;
  /** Stored segments whose `toMs` is before this instant are not needed any more. */
  readonly keepFromMs: number;
}
