/** Reads the data of server-sent events from chunks of bytes, which may be cut anywhere. */

/** Longer events are skipped: no answer's usage is in one. */
const MAX_EVENT_CHARACTERS = 4_000_000;

/** Lines end with LF, CR or CR LF; the data lines of an event are joined; other fields and comments are skipped. */
export class EventReader {
  readonly #onData: (data: string) => void;
  readonly #decoder = new TextDecoder();
  /** The last line so far. */
  #line = "";
  /** The data lines of the last event so far. */
  #data: string[] = [];
  #characters = 0;
  #endedWithCarriageReturn = false;

  constructor(onData: (data: string) => void) {
    this.#onData = onData;
  }

  read(chunk: Uint8Array): void {
    this.#take(this.#decoder.decode(chunk, { stream: true }));
  }

  /** The stream has ended, perhaps within its last event, which then counts as far as it came. */
  end(): void {
    this.#take(this.#decoder.decode());
    this.#endLine();
    this.#endLine();
  }

  #take(decoded: string): void {
    if (decoded === "") return;
    const text = this.#endedWithCarriageReturn && decoded.startsWith("\n") ? decoded.slice(1) : decoded;
    this.#endedWithCarriageReturn = decoded.endsWith("\r");
    const [first = "", ...others] = text.split(/\r\n|\n|\r/);
    this.#add(first);
    for (const line of others) {
      this.#endLine();
      this.#add(line);
    }
  }

  #add(text: string): void {
    this.#characters += text.length;
    if (this.#characters <= MAX_EVENT_CHARACTERS) this.#line += text;
  }

  #endLine(): void {
    const line = this.#line;
    this.#line = "";
    if (line !== "") {
      if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      return;
    }
    const data = this.#data.join("\n");
    const isWhole = this.#characters <= MAX_EVENT_CHARACTERS;
    this.#data = [];
    this.#characters = 0;
    if (isWhole && data !== "") this.#onData(data);
  }
}
