/**
 * A provider of models on HTTP, which speaks OpenAI's chat completions and responses and Anthropic's messages. What a
 * request asks for, its prompt says (`promptText`). It counts what it has generated, which is what it would bill.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

export interface Prompt {
  /** Tokens of output: a word each. */
  readonly words?: number;
  /** Between two words, in milliseconds. */
  readonly pauseMs?: number;
  /** Other than 200: nothing is generated. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** The answer does not say what it used. */
  readonly isSilent?: boolean;
  /** The connection breaks after so many words. */
  readonly breaksAfter?: number;
}

export interface Provider {
  readonly url: string;
  /** The bodies that came, as JSON. */
  readonly bodies: Record<string, unknown>[];
  /** Tokens that were generated, and those of the input. */
  readonly spent: () => number;
  stop(): Promise<void>;
}

/** Tokens of a prompt, as this provider counts them. */
export const inputTokensOf = (body: string) => Math.ceil(body.length / 4);
export const WORD = "word ";

export async function startProvider(): Promise<Provider> {
  const bodies: Record<string, unknown>[] = [];
  let spent = 0;
  const answer = async (request: IncomingMessage, response: ServerResponse) => {
    let text = "";
    for await (const part of request) text += String(part);
    const body = JSON.parse(text) as Record<string, unknown>;
    bodies.push(body);
    const prompt = promptIn(text);
    if (prompt.status !== undefined && prompt.status !== 200) {
      response.writeHead(prompt.status, { ...prompt.headers, "content-type": "application/json" });
      return response.end(JSON.stringify({ error: { message: "as it was asked", type: "api_error" } }));
    }
    const input = inputTokensOf(text);
    spent += input;
    const { words = 3, breaksAfter, pauseMs = 0, headers = {} } = prompt;
    const voice = voiceOf(request.url ?? "", input, prompt.isSilent === true, body);
    if (body["stream"] !== true) {
      spent += words;
      response.writeHead(200, { ...headers, "content-type": "application/json" });
      return response.end(JSON.stringify(voice.whole(words)));
    }
    response.writeHead(200, { ...headers, "content-type": "text/event-stream" });
    const send = (event: object | string) =>
      response.write(
        typeof event === "string"
          ? `data: ${event}\n\n`
          : `${named(event)}data: ${JSON.stringify(event)}\n\n`,
      );
    voice.begin.forEach(send);
    for (let word = 0; word < words && !response.destroyed; word += 1) {
      if (word === breaksAfter) return response.destroy();
      send(voice.word);
      spent += 1;
      if (pauseMs > 0) await sleep(pauseMs);
    }
    voice.end(words).forEach(send);
    return response.end();
  };
  const server = createServer((request, response) => void answer(request, response));
  await new Promise<void>((up) => void server.listen(0, "127.0.0.1", up));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/v1`,
    bodies,
    spent: () => spent,
    stop: async () => {
      server.closeAllConnections();
      await new Promise((done) => server.close(done));
    },
  };
}

/** Events that have a type have it as their name too, which Anthropic's client reads. */
function named(event: { readonly type?: string }): string {
  return event.type === undefined ? "" : `event: ${event.type}\n`;
}

/** The text of a prompt, which stands in a body wherever its client puts it. */
export function promptText(prompt: Prompt): string {
  return `ask:${encodeURIComponent(JSON.stringify(prompt))};`;
}

function promptIn(text: string): Prompt {
  const [, asked = "%7B%7D"] = [...text.matchAll(/ask:([^;]*);/g)].at(-1) ?? [];
  return JSON.parse(decodeURIComponent(asked)) as Prompt;
}

interface Voice {
  readonly begin: readonly object[];
  readonly word: object;
  readonly end: (words: number) => readonly (object | string)[];
  readonly whole: (words: number) => object;
}

function voiceOf(path: string, input: number, isSilent: boolean, body: Record<string, unknown>): Voice {
  if (path.endsWith("/chat/completions")) return chat(input, isSilent, body);
  if (path.endsWith("/responses")) return responses(input, isSilent);
  return messages(input, isSilent);
}

function chat(input: number, isSilent: boolean, body: Record<string, unknown>): Voice {
  const base = { id: "c1", object: "chat.completion.chunk", created: 1, model: body["model"] };
  const usage = (words: number) => ({
    prompt_tokens: input,
    completion_tokens: words,
    total_tokens: input + words,
    prompt_tokens_details: { cached_tokens: 1 },
  });
  const isAsked = (body["stream_options"] as { include_usage?: unknown } | undefined)?.include_usage === true;
  const choice = (delta: object, finish: string | null = null) => [
    { index: 0, delta, finish_reason: finish },
  ];
  return {
    begin: [{ ...base, choices: choice({ role: "assistant", content: "" }) }],
    word: { ...base, choices: choice({ content: WORD }), ...(isAsked && { usage: null }) },
    end: (words) => [
      { ...base, choices: choice({}, "stop") },
      ...(isAsked && !isSilent ? [{ ...base, choices: [], usage: usage(words) }] : []),
      "[DONE]",
    ],
    whole: (words) => ({
      ...base,
      object: "chat.completion",
      choices: [
        { index: 0, message: { role: "assistant", content: WORD.repeat(words) }, finish_reason: "stop" },
      ],
      ...(!isSilent && { usage: usage(words) }),
    }),
  };
}

function responses(input: number, isSilent: boolean): Voice {
  const usage = (words: number) => ({
    input_tokens: input,
    input_tokens_details: { cached_tokens: 1 },
    output_tokens: words,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: input + words,
  });
  const whole = (words: number) => ({
    id: "r1",
    object: "response",
    status: "completed",
    output: [
      {
        type: "message",
        id: "m1",
        role: "assistant",
        content: [{ type: "output_text", text: WORD.repeat(words) }],
      },
    ],
    ...(!isSilent && { usage: usage(words) }),
  });
  return {
    begin: [
      {
        type: "response.created",
        response: { id: "r1", object: "response", status: "in_progress", output: [], usage: null },
      },
    ],
    word: {
      type: "response.output_text.delta",
      item_id: "m1",
      output_index: 0,
      content_index: 0,
      delta: WORD,
    },
    end: (words) => [{ type: "response.completed", response: whole(words) }],
    whole,
  };
}

function messages(input: number, isSilent: boolean): Voice {
  const cached = { cache_creation_input_tokens: 1, cache_read_input_tokens: 2 };
  const usage = (words: number) =>
    isSilent ? {} : { usage: { input_tokens: input - 3, ...cached, output_tokens: words } };
  const base = { id: "m1", type: "message", role: "assistant", model: "claude", stop_sequence: null };
  return {
    begin: [
      { type: "message_start", message: { ...base, content: [], stop_reason: null, ...usage(1) } },
      { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
      { type: "ping" },
    ],
    word: { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: WORD } },
    end: (words) => [
      { type: "content_block_stop", index: 0 },
      {
        type: "message_delta",
        delta: { stop_reason: "end_turn", stop_sequence: null },
        ...(!isSilent && { usage: { output_tokens: words } }),
      },
      { type: "message_stop" },
    ],
    whole: (words) => ({
      ...base,
      content: [{ type: "text", text: WORD.repeat(words) }],
      stop_reason: "end_turn",
      ...usage(words),
    }),
  };
}
