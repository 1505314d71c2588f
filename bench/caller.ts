/** A worker that asks over its service binding for each request, and answers what it is answered. */
interface Env {
  readonly LIMITER: { limit(call: unknown): Promise<unknown> };
}

export default {
  async fetch(request: Request, { LIMITER }: Env): Promise<Response> {
    if (request.method !== "POST") return new Response("up");
    return Response.json(await LIMITER.limit(await request.json()));
  },
};
