/**
 * A user's worker with the service binding LIMITER: it acquires a lease and then ends in one way or another.
 * Plain JavaScript, since workerd runs it directly.
 */
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const endings = {
  return: () => new Response("returned"),
  throw: () => {
    throw new Error("thrown by the caller");
  },
  dispose: async (grant) => {
    grant[Symbol.dispose]();
    await sleep(20_000);
    return new Response("never");
  },
  hang: async () => {
    await sleep(20_000);
    return new Response("never");
  },
  waitUntil: (_, ctx) => {
    ctx.waitUntil(sleep(400));
    return new Response("returned, and works on");
  },
  stream: () => {
    const { readable, writable } = new TransformStream();
    const writer = writable.getWriter();
    void (async () => {
      await sleep(400);
      await writer.write(new TextEncoder().encode("late"));
      await writer.close();
    })();
    return new Response(readable);
  },
  release: async (grant) => {
    await grant.release();
    const again = await grant.release().catch((error) => error.code);
    const renewal = await grant.renew().catch((error) => error.code);
    return Response.json({ again, renewal });
  },
  renew: async (grant) => {
    const renewed = await grant.renew({ ttlMs: 5_000 });
    const same = await grant.renew();
    const refused = await grant
      .renew({ ttlMs: 1e9, "a/b": 1 })
      .catch(({ name, status, code, errors }) => ({ name, status, code, errors }));
    return Response.json({ id: grant.lease.id, renewed, same, refused });
  },
};

export default {
  async fetch(request, env, ctx) {
    const { ending, ...call } = await request.json();
    const grant = await env.LIMITER.acquire(call);
    if (!grant.success) return Response.json({ ...grant });
    if (ending === "detached") return Response.json({ lease: grant.lease });
    return await endings[ending](grant, ctx);
  },
};
